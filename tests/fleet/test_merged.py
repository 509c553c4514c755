"""`list`, `top` and `explain` with --all-nodes, with agents' pods behind an API server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer, pod_exec

from nftproxy.agent.socket.answers import ConflictRow, ConnectionRow, Connections, EndpointRow, ListingRow, ServiceRow
from nftproxy.commands.output import with_times
from nftproxy.fleet import merged_rows
from nftproxy.fleet.inventory import WITH_NET_ADMIN
from tests.support.command import nftproxy
from tests.support.fleet import FleetOfAgents, RunCommand, answering

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FleetOfAgents]:
    """A cluster without nodes."""
    with ApiServer() as server:
        yield FleetOfAgents(server, tmp_path)


def listing(*rows: ListingRow, caveat: str = "") -> RunCommand:
    """The output of `nftproxy list -o json`."""
    return answering({"kind": "List", "caveat": caveat, "items": rows})


def conflict(service: str, holder: str) -> ConflictRow:
    """A conflict about an address."""
    return ConflictRow("shop", service, "http", "203.0.113.1:80/TCP", "taken", holder)


def endpoint(address: str, *, is_local: bool, why: str = "ready") -> EndpointRow:
    """An endpoint of the Service shop/web."""
    return EndpointRow(
        "shop", "web", "http", 80, "TCP", address, 8080, is_local, why == "ready", why, False, "", f"shop/{address}"
    )


def test_equal_rows_are_a_row(cluster: FleetOfAgents) -> None:
    """A row that all nodes have is on all, and any other row names its nodes."""
    cluster.add("node-a", listing(conflict("web", "shop/api"), conflict("mail", "")))
    cluster.add("node-b", listing(conflict("web", "shop/api")))
    done = cluster.nftproxy("list", "conflicts", "-A", "--all-nodes")
    assert done.status == 0
    assert done.out.splitlines() == [
        "NAMESPACE   SERVICE   PORT-NAME   LACKS                HOLDER     NODES",
        "shop        mail      http        203.0.113.1:80/TCP   <none>     node-a",
        "shop        web       http        203.0.113.1:80/TCP   shop/api   all",
    ]
    assert {each.command for each in cluster.asked} == {("nftproxy", "list", "conflicts", "-o", "json", "-A")}


def test_silent_endpoints_name_the_nodes_that_get_no_answer(cluster: FleetOfAgents) -> None:
    """An endpoint that two of three nodes leave out is a row with these nodes, although it is on one of them."""
    silent = "left out, as it doesn't answer this node, or refuses its connections"
    cluster.add("node-a", listing())
    cluster.add("node-b", listing(endpoint("10.1.1.4", is_local=True, why=silent)))
    cluster.add("node-c", listing(endpoint("10.1.1.4", is_local=False, why=silent)))
    done = cluster.nftproxy("list", "silent", "-n", "shop", "--all-nodes")
    assert done.out.splitlines() == [
        "SERVICE   PORT     ENDPOINT        USED   POD        NODES",
        "web       80/TCP   10.1.1.4:8080   no     10.1.1.4   node-b,node-c",
    ]


def test_services_have_their_time_of_creation(cluster: FleetOfAgents) -> None:
    """A node prints the time as text, and the merged rows have it, too.  An item that is no row is no answer."""
    service = ServiceRow(
        "shop", "web", "ClusterIP", ("10.96.0.10",), (), ("80/TCP",), 60, "Served", 2, 0, 2, "Cluster", "", None, {}
    )
    cluster.add("node-a", answering(with_times({"kind": "List", "items": [service]})))
    cluster.add("node-b", answering({"kind": "List", "items": [{"kind": "Service", "created": "yesterday"}]}))
    done = cluster.nftproxy("list", "svc", "-n", "shop", "--all-nodes", "-o", "json")
    (found,) = json.loads(done.out)["items"]
    assert (found["nodes"], found["row"]["created"]) == (["node-a"], "1970-01-01T00:01:00Z")
    assert done.err.startswith("no answer from node-b: its answer can't be read, as from another version of nftproxy: ")


def test_many_nodes_are_a_number(cluster: FleetOfAgents) -> None:
    """A row of more than three nodes, but not of all, has their number.  JSON has their names."""
    for number in range(5):
        cluster.add(f"node-{number}", listing(*([conflict("web", "")] if number else [])))
    done = cluster.nftproxy("list", "conflicts", "-n", "shop", "--all-nodes")
    assert done.out.splitlines()[1].split()[-3:] == ["4", "of", "5"]
    found = json.loads(cluster.nftproxy("list", "conflicts", "-n", "shop", "--all-nodes", "-o", "json").out)
    assert [each["nodes"] for each in found["items"]] == [["node-1", "node-2", "node-3", "node-4"]]
    assert found["items"][0]["row"]["kind"] == "Conflict"


def test_nodes_without_an_answer_are_named(cluster: FleetOfAgents) -> None:
    """The rows of the others are printed, and the exit status is 1.  An answer that may be old has a caveat."""
    cluster.add("node-a", listing(conflict("web", ""), caveat="NFT509: old"))
    cluster.add("node-b", answering(b"", 1, "error: NFT023: no agent answers at /run/nftproxy/agent.sock\n  start it"))
    done = cluster.nftproxy("list", "conflicts", "-n", "shop", "--all-nodes")
    assert (done.status, len(done.out.splitlines())) == (1, 2)
    assert done.err.splitlines() == [
        "no answer from node-b: NFT023: no agent answers at /run/nftproxy/agent.sock",
        "caveat: node-a: NFT509: old",
    ]


def test_connections_are_added_up(cluster: FleetOfAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections of a Service port to an endpoint are the sum of all nodes', the largest first."""
    web = ConnectionRow("shop/web", "80", "TCP", "10.1.0.4:8080", 2, 1)
    api = ConnectionRow("shop/api", "80", "TCP", "10.1.0.5:8080", 3)
    cluster.add("node-a", answering(Connections(5, 0, (api, web))))
    cluster.add("node-b", answering(Connections(12, 10, (web,))))
    done = cluster.nftproxy("top", "--all-nodes")
    assert (done.status, done.out.splitlines()) == (
        0,
        [
            "SERVICE    PORT     ENDPOINT        CONNECTIONS   UNANSWERED",
            "shop/web   80/TCP   10.1.0.4:8080   4             2",
            "shop/api   80/TCP   10.1.0.5:8080   3             0",
            "and 10 more",
        ],
    )
    monkeypatch.setattr(merged_rows, "MOST_KEYS", 1)
    done = cluster.nftproxy("top", "--node", "node-a", "-o", "json")
    assert (json.loads(done.out)["connections"], json.loads(done.out)["others"]) == (5, 2)


def test_connections_without_services_are_no_answer(cluster: FleetOfAgents) -> None:
    """A node whose agent doesn't answer has connections by address only, so it is a node without an answer."""
    cluster.add("node-a", answering(Connections(3, 0, (ConnectionRow("shop/api", "80", "TCP", "10.1.0.5:80", 3),))))
    by_address = ConnectionRow("", "10.96.0.10:80", "TCP", "10.1.0.5:80", 7)
    cluster.add("node-b", answering(Connections(7, 0, (by_address,), problem="no agent answers at x")))
    done = cluster.nftproxy("top", "--all-nodes")
    assert (done.status, done.err) == (1, "no answer from node-b: no agent answers at x\n")
    assert [line.split()[0] for line in done.out.splitlines()] == ["SERVICE", "shop/api"]


def explained(example: str, node_name: str, to: str, *options: str) -> RunCommand:
    """The output of `nftproxy explain -o json` for a node of an example."""
    directory = EXAMPLES / example
    given = (to, directory / "manifests", "--config", directory / "config.yaml", "--node", node_name)
    return answering(nftproxy("explain", *given, "-o", "json", *options).out.encode())


def test_nodes_that_agree_are_an_answer(cluster: FleetOfAgents) -> None:
    """Nodes whose connections have the same outcome are one answer, without what differs on each node."""
    for name in ("node-a", "node-b", "node-c"):
        cluster.add(name, explained("cluster-ip", name, "svc/shop/web"))
    done = cluster.nftproxy("explain", "svc/shop/web", "--all-nodes")
    assert done.status == 0
    assert done.out.splitlines() == [
        "svc/shop/web, on 3 nodes",
        "",
        "all 3 nodes:",
        "  10.96.0.10:80/TCP: ClusterIP of Service shop/web:http",
        "    from anywhere: translated: to one of 3 endpoints, drawn at random",
        "      33.3 % each: 10.1.0.4:8080 shop/web-1, 10.1.1.4:8080 shop/web-2, 10.1.2.4:8080 shop/web-3",
        "      none: 10.1.2.5:8080 shop/web-4: not ready",
    ]


def lines_of(cluster: FleetOfAgents, *arguments: str) -> Sequence[str]:
    """The lines of an explanation."""
    return cluster.nftproxy("explain", *arguments, "--all-nodes").out.splitlines()


def test_nodes_that_differ_are_shown_with_their_difference(cluster: FleetOfAgents) -> None:
    """The answer of most nodes comes first and whole, and of any other node the lines that differ."""
    for name in ("node-a", "node-b", "node-c"):
        cluster.add(name, explained("topology", name, "svc/shop/web"))
    assert lines_of(cluster, "svc/shop/web") == [
        "svc/shop/web, on 3 nodes, which give 2 different answers",
        "",
        "2 nodes (node-b, node-c):",
        "  10.96.0.10:80/TCP: ClusterIP of Service shop/web:http",
        "    note: NFT308: all endpoints are used in spite of trafficDistribution PreferSameZone: this node's zone is "
        "not known",
        "    from anywhere: translated: to one of 3 endpoints, drawn at random",
        "      33.3 % each: 10.1.0.4:8080 shop/web-1, 10.1.1.4:8080 shop/web-2, 10.1.2.4:8080 shop/web-3",
        "",
        "node-a:",
        "  10.96.0.10:80/TCP: ClusterIP of Service shop/web:http",
        "    from anywhere: translated: to one of 2 endpoints, drawn at random",
        "      50.0 % each: 10.1.0.4:8080 shop/web-1, 10.1.1.4:8080 shop/web-2",
        "      none: 10.1.2.4:8080 shop/web-3: every ready endpoint has zone hints, and its own do not name this "
        "node's zone",
    ]


def test_a_kernel_that_differs_is_a_fault(cluster: FleetOfAgents) -> None:
    """A node whose kernel lacks elements differs from the others, and the exit status is 1."""
    cluster.add("node-a", explained("cluster-ip", "node-a", "svc/shop/web"))
    found = json.loads(explained_text("cluster-ip", "node-b", "svc/shop/web"))
    for each in found["places"][0]["expected"]:
        each["is_held"] = each["container"] != "services"
    cluster.add("node-b", answering(found))
    done = cluster.nftproxy("explain", "svc/shop/web", "--all-nodes")
    assert done.status == 1
    assert done.out.splitlines()[-3:] == [
        "node-b:",
        "  10.96.0.10:80/TCP: ClusterIP of Service shop/web:http",
        "    kernel: 1 element is missing or wrong, in services",
    ]


def explained_text(example: str, node_name: str, to: str) -> str:
    """The same as text."""
    directory = EXAMPLES / example
    given = (to, directory / "manifests", "--config", directory / "config.yaml", "--node", node_name)
    return nftproxy("explain", *given, "-o", "json").out


def test_a_question_for_one_node(cluster: FleetOfAgents) -> None:
    """--node without manifests asks the agent of that node, and passes the source on."""
    cluster.add("node-a", explained("cluster-ip", "node-a", "10.96.0.10:80"))
    done = cluster.nftproxy("explain", "10.96.0.10:80", "--from", "outside", "--node", "node-a")
    assert done.out.splitlines()[0] == "10.96.0.10:80 from outside, on 1 node"
    assert cluster.asked[0].command == ("nftproxy", "explain", "10.96.0.10:80", "-o", "json", "--from=outside")
    done = cluster.nftproxy("explain", "10.96.0.10:80", "--node", "node-a", "--trace")
    assert (done.status, "--trace is for a single node" in done.err) == (2, True)


def finding(severity: str, code: str, *evidence: str) -> dict[str, object]:
    """A finding as `doctor -o json` prints it."""
    known = {"code": code, "severity": severity, "summary": f"summary of {code}", "means": "m", "do": "mend it"}
    return known | {"evidence": evidence}


def test_findings_of_all_nodes_are_merged(cluster: FleetOfAgents) -> None:
    """A finding with the same evidence is printed once with its nodes, the worst first, and nodes are counted."""
    denied, note = finding("error", "NFT503", "list nodes"), finding("note", "NFT601", "x")
    cluster.add("node-a", answering({"node": "node-a", "findings": [note, denied]}, 1))
    cluster.add("node-b", answering({"node": "node-b", "findings": [note]}))
    cluster.add("node-c", answering({"node": "node-c", "findings": [note, finding("warning", "NFT404", "ip6")]}, 1))
    done = cluster.nftproxy("doctor", "--all-nodes")
    assert (done.status, done.err) == (1, "")
    assert done.out.splitlines() == [
        "3 nodes: 1 with errors, 1 with warnings, 1 without either",
        "",
        "error NFT503: summary of NFT503, on node-a",
        "  seen: list nodes",
        "  do:   mend it",
        "",
        "warning NFT404: summary of NFT404, on node-c",
        "  seen: ip6",
        "  do:   mend it",
        "",
        "note NFT601: summary of NFT601, on all 3 nodes",
    ]
    found = json.loads(cluster.nftproxy("doctor", "-l", "kubernetes.io/hostname=node-b", "-o", "json").out)
    assert [(each["finding"]["code"], each["nodes"]) for each in found["findings"]] == [("NFT601", ["node-b"])]
    assert cluster.nftproxy("doctor", "--node", "node-b", "-o", "json").out == json.dumps(found, indent=2) + "\n"
    assert cluster.nftproxy("doctor", "--all-nodes", "--node", "x").status == 2
    done = cluster.nftproxy("doctor", "--all-nodes", "--config", "x")
    assert (done.status, done.err.splitlines()[-1]) == (2, "Error: --config is for this node")


ADDED = b"add element ip nftproxy cluster-ips { 10.96.0.10 }\n"
CHANGE = b"table ip nftproxy {\n\tchain x {\n\t}\n}\n" + ADDED


def test_nodes_with_the_same_difference_are_a_group(cluster: FleetOfAgents) -> None:
    """`diff --live` sends the manifests to each node, and prints a transaction once, after a comment with its nodes."""
    cluster.add("node-a", answering(b""))
    cluster.add("node-b", answering(CHANGE, 1))
    cluster.add("node-c", answering(b""))
    cluster.add("node-d", answering(b"", 1, "error: NFT023: no agent answers\n  start it"))
    directory = EXAMPLES / "cluster-ip" / "manifests"
    done = cluster.nftproxy("diff", "--live", directory, "--all-nodes", "--strict")
    assert (done.status, done.err) == (1, "no answer from node-d: NFT023: no agent answers\n")
    assert done.out.encode() == b"# 2 nodes (node-a, node-c): no difference\n# node-b: 5 lines\n" + CHANGE
    assert {each.command for each in cluster.asked} == {(*WITH_NET_ADMIN, "diff", "--live", "-")}
    sent = json.loads(cluster.asked[0].stdin)["items"]
    wanted = [each for path in sorted(directory.iterdir()) for each in yaml.safe_load_all(path.read_text())]
    assert sent == [each for each in wanted if each["kind"] in ("Service", "EndpointSlice", "Node", "ServiceCIDR")]
    done = cluster.nftproxy("diff", "--live", directory, "--node", "node-a")
    assert (done.status, done.out) == (0, "# node-a: no difference\n")


def test_a_long_difference_is_cut(cluster: FleetOfAgents, tmp_path: Path) -> None:
    """Of a difference 1,000 lines are printed, and the number of the rest."""
    cluster.add("node-a", answering(ADDED * 1_003, 1))
    (tmp_path / "x.json").write_text("{}")
    done = cluster.nftproxy("diff", "--live", tmp_path / "x.json", "-l", "kubernetes.io/os=linux")
    lines = done.out.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("# node-a: 1003 lines", "# and 3 more lines", 1_002)


def test_bad_manifests_are_named_before_nodes_are_asked(cluster: FleetOfAgents, tmp_path: Path) -> None:
    """A fault of the manifests is a warning, or with --strict the end, and a question without --live is refused."""
    cluster.add("node-a", answering(b""))
    file = tmp_path / "x.yaml"
    file.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {ports: 7}\n")
    done = cluster.nftproxy("diff", "--live", file, "--all-nodes")
    assert (done.status, f"warning: NFT204: {file}: Service shop/web: spec.ports: " in done.err) == (0, True)
    done = cluster.nftproxy("diff", "--live", file, "--all-nodes", "--strict")
    assert (done.status, len(cluster.asked)) == (2, 1)
    for wrong in (("diff", file, "--all-nodes"), ("diff", "--live", file, "--all-nodes", "--config", file)):
        assert (cluster.nftproxy(*wrong).status, len(cluster.asked)) == (2, 1)


def test_a_server_whose_exec_has_no_end_of_input(cluster: FleetOfAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server before Kubernetes 1.30 can't end the standard input of a command, which costs the node's answer."""
    monkeypatch.setattr(pod_exec, "PROTOCOLS", ("v4.channel.k8s.io",))
    cluster.add("node-a", answering(b""))
    done = cluster.nftproxy("diff", "--live", EXAMPLES / "cluster-ip" / "manifests", "--all-nodes")
    assert (done.status, done.err) == (
        1,
        "no answer from node-a: its exec can't end standard input: that takes v5.channel.k8s.io (Kubernetes 1.30)\n",
    )
