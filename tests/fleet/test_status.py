"""`nftproxy status --all-nodes`, with agents' pods behind an API server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nftproxy_conformance.apiserver import ApiServer, ExecRequest, ExecResult, NoKubeletError

from nftproxy.agent.socket.answers import Versions
from nftproxy.commands.status import StatusReport
from nftproxy.fleet import asking
from tests.support.fleet import (
    FleetOfAgents,
    agent_pod,
    answering,
    hanging,
    kube_proxy_pod,
    node,
    status_of,
)

OUT_OF_TOUCH = "NFT509: no changes of services have reached this node for 70 s: 401 Unauthorized: ''"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server that knows TLS and tokens."""
    with ApiServer(tls=True, authenticate=True) as server:
        yield server


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> FleetOfAgents:
    """A cluster without nodes."""
    return FleetOfAgents(server, tmp_path)


def test_a_well_cluster_is_a_line(cluster: FleetOfAgents) -> None:
    """If all nodes are well, a line says so, and the exit status is 0."""
    for name in ("node-a", "node-b"):
        cluster.add(name, status_of(name))
    done = cluster.nftproxy("status", "--all-nodes")
    assert (done.status, done.out, done.err) == (0, "2 nodes: 2 well\n", "")
    assert {(each.container, each.command) for each in cluster.asked} == {
        ("nftproxy", ("nftproxy", "status", "-o", "json"))
    }


def test_each_node_in_need_of_attention_is_a_row(server: ApiServer, cluster: FleetOfAgents) -> None:
    """The worst nodes come first, each with its reasons, and the line before counts the nodes of each state."""
    cluster.add("node-a", status_of("node-a"))
    cluster.add("node-b", status_of("node-b", warnings=(OUT_OF_TOUCH,), caveat=OUT_OF_TOUCH))
    cluster.add("node-c", answering(StatusReport(is_healthy=False, problem="no agent answers", advice="x"), 1))
    cluster.add("node-d", status_of("node-d", is_healthy=False, why_not=("IPv4: a change waits for 61 s",)))
    cluster.add("node-e", status_of("node-e", warnings=("NFT404: IPv6 isn't forwarded",)))
    server.put(
        node("node-f"), node("node-g"), kube_proxy_pod("node-g"), node("windows", **{"kubernetes.io/os": "windows"})
    )
    done = cluster.nftproxy("status", "--all-nodes")
    assert done.status == 1
    assert done.out.splitlines() == [
        "7 nodes: 1 well, 1 with warnings, 1 out of touch, 1 not healthy, 1 doesn't answer, 1 without an agent, "
        "1 with kube-proxy instead",
        "",
        "NODE     STATE        REASON",
        "node-c   NoAnswer     no agent answers",
        "node-f   NoAgent      -",
        "node-d   NotHealthy   IPv4: a change waits for 61 s",
        f"node-b   OutOfTouch   {OUT_OF_TOUCH}",
        "node-e   Warnings     NFT404: IPv6 isn't forwarded",
    ]


def test_differences_between_well_nodes_are_remarks(server: ApiServer, cluster: FleetOfAgents) -> None:
    """Versions and configurations that differ, and kube-proxy beside an agent, each get a line, and cost no status."""
    for name in ("node-a", "node-b", "node-c"):
        cluster.add(name, status_of(name))
    cluster.add("node-d", status_of("node-d", versions=Versions("0.1.0", "6.1", "1", "3"), configuration="00000001"))
    server.put(kube_proxy_pod("node-b"))
    done = cluster.nftproxy("status", "--all-nodes")
    assert done.status == 0
    assert done.out.splitlines() == [
        "4 nodes: 4 well",
        "kube-proxy beside the agent: node-b",
        "versions differ: 0.2.0 on 3 nodes; 0.1.0 on node-d",
        "configurations differ: 5f70bf18 on 3 nodes; 00000001 on node-d",
    ]


def test_wide_has_each_node(cluster: FleetOfAgents) -> None:
    """-o wide has a row for each node, with its version, kernel, configuration and pod."""
    for name in ("node-b", "node-a"):
        cluster.add(name, status_of(name))
    done = cluster.nftproxy("status", "--all-nodes", "-o", "wide")
    assert [line.split() for line in done.out.splitlines()[2:]] == [
        ["NODE", "STATE", "VERSION", "KERNEL", "CONFIGURATION", "POD", "REASON"],
        ["node-a", "Well", "0.2.0", "6.12.1", "5f70bf18", "nftproxy-node-a", "-"],
        ["node-b", "Well", "0.2.0", "6.12.1", "5f70bf18", "nftproxy-node-b", "-"],
    ]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"warnings": (OUT_OF_TOUCH,), "caveat": OUT_OF_TOUCH}, "OutOfTouch"),
        ({"is_eligible": False, "why_not": ("the cluster autoscaler is about to remove the node",)}, "Leaving"),
    ],
)
def test_a_healthy_node_that_needs_attention_is_exit_status_3(
    cluster: FleetOfAgents, changes: dict[str, Any], state: str
) -> None:
    """The exit status is 3 if the worst node is healthy and out of touch, or is being removed."""
    cluster.add("node-a", status_of("node-a"))
    cluster.add("node-b", status_of("node-b", **changes))
    done = cluster.nftproxy("status", "--all-nodes")
    assert (done.status, done.out.splitlines()[-1].split()[:2]) == (3, ["node-b", state])


def test_json_has_each_nodes_own_answer(cluster: FleetOfAgents) -> None:
    """-o json has the states, and each node's own status as it is there."""
    cluster.add("node-a", status_of("node-a", features={"Silent endpoints": ("10.1.0.4:8080",)}))
    cluster.add("node-b", answering(b"<html>"))
    done = cluster.nftproxy("status", "--all-nodes", "-o", "json")
    found = json.loads(done.out)
    assert found["states"] == {"Well": 1, "NoAnswer": 1}
    assert found["nodes"][0]["status"]["agent"]["features"] == {"Silent endpoints": ["10.1.0.4:8080"]}
    assert found["nodes"][1]["status"] is None
    assert found["nodes"][1]["reasons"][0].startswith("its answer can't be read, as from another version of nftproxy: ")
    assert done.status == 1


def test_nodes_are_chosen_by_name_and_by_label(server: ApiServer, cluster: FleetOfAgents) -> None:
    """--node asks these nodes, -l the nodes that its labels select, and an unknown name is bad input."""
    for name in ("node-a", "node-b", "node-c"):
        cluster.add(name, status_of(name))
    server.put(node("node-c", zone="z"))
    assert cluster.nftproxy("status", "--node", "node-b").out == "1 node: 1 well\n"
    assert [each.pod for each in cluster.asked] == ["nftproxy-node-b"]
    cluster.asked.clear()
    assert cluster.nftproxy("status", "-l", "zone=z").out == "1 node: 1 well\n"
    assert [each.pod for each in cluster.asked] == ["nftproxy-node-c"]
    done = cluster.nftproxy("status", "--node", "node-x")
    assert (done.status, done.err) == (2, "error: NFT635: --node: the cluster has no node 'node-x'\n")


async def _without_kubelet(_request: ExecRequest) -> ExecResult:
    raise NoKubeletError("error dialing backend: dial tcp 10.0.0.2:10250: i/o timeout")


async def _broken(_request: ExecRequest) -> ExecResult:
    """Break the connection: the server closes it without a word."""
    raise asyncio.CancelledError


def test_a_node_that_gives_no_answer_costs_its_row(
    server: ApiServer, cluster: FleetOfAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreachable kubelet, a command that fails or hangs, an endless answer, a broken connection: each is a row."""
    monkeypatch.setattr("nftproxy.commands.other_nodes.START", 0.5)
    monkeypatch.setattr(asking, "LARGEST", 100_000)
    cluster.add("node-a", _without_kubelet)
    cluster.add("node-b", answering(b"", 126, "exec: nftproxy: not found"))
    cluster.add("node-c", hanging)
    cluster.add("node-d", answering(b"x" * 200_000))
    cluster.add("node-e", status_of("node-e"))
    server.put(node("node-f"), agent_pod("node-f"))
    server.delete("Pod", "kube-system", "nftproxy-node-f")
    cluster.add("node-g", _broken)
    done = cluster.nftproxy("status", "--all-nodes", "--timeout", "4.5")
    assert done.out.splitlines()[0] == "7 nodes: 1 well, 5 don't answer, 1 without an agent"
    assert [line.split(maxsplit=2) for line in done.out.splitlines()[3:]] == [
        ["node-a", "NoAnswer", "error dialing backend: dial tcp 10.0.0.2:10250: i/o timeout"],
        ["node-b", "NoAnswer", "exec: nftproxy: not found"],
        ["node-c", "NoAnswer", "no answer within 5 s"],
        ["node-d", "NoAnswer", "an answer of more than 100000 bytes"],
        ["node-g", "NoAnswer", "the connection to its agent's pod has ended early"],
        ["node-f", "NoAgent", "-"],
    ]


def test_a_container_that_does_not_run_is_named_with_its_reason(server: ApiServer, cluster: FleetOfAgents) -> None:
    """A pod whose container waits for its next start isn't asked, and the node's row has the kubelet's reason."""
    server.put(node("node-a"), agent_pod("node-a", is_ready=False, waiting="CrashLoopBackOff"))
    done = cluster.nftproxy("status", "--all-nodes")
    assert done.out.splitlines()[3] == "node-a   NoAnswer   the container of its agent doesn't run: CrashLoopBackOff"
    assert cluster.asked == []


def test_the_pod_that_is_ready_counts(server: ApiServer, cluster: FleetOfAgents) -> None:
    """If a node has two agents' pods, as while one replaces the other, the ready pod is asked."""
    cluster.add("node-a", status_of("node-a"))
    old = agent_pod("node-a", is_ready=False)
    server.put(msgspec.json.decode(msgspec.json.encode(old).replace(b"nftproxy-node-a", b"nftproxy-zzz")))
    assert cluster.nftproxy("status", "--all-nodes").out == "1 node: 1 well\n"


def test_missing_rights_are_named(server: ApiServer, cluster: FleetOfAgents) -> None:
    """Without the right to list, an error says how to get it.  Without the right to exec, each node's row does."""
    cluster.add("node-a", status_of("node-a"))
    server.rbac = []
    done = cluster.nftproxy("status", "--all-nodes")
    assert done.status == 1
    assert "no list of nodes: 403 Forbidden: " in done.err
    assert done.err.endswith("; `nftproxy manifests --reader` prints the rights\n")
    server.rbac = [("", "nodes", "list"), ("", "pods", "list"), ("", "pods/exec", "get")]
    done = cluster.nftproxy("status", "--all-nodes")
    assert done.out.splitlines()[3].endswith(
        "the API server answers its exec with status 403: the right to exec is missing (nftproxy manifests --reader)"
    )


def test_no_cluster_is_an_error(tmp_path: Path, server: ApiServer, cluster: FleetOfAgents) -> None:
    """A kubeconfig that isn't there or lacks the context, and a server that doesn't answer, are errors of a line."""
    done = cluster.nftproxy("status", "--all-nodes", "--context", "x")
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert done.err.startswith("error: NFT106: ")
    assert str(tmp_path) in done.err
    server.expire_token()
    done = cluster.nftproxy("status", "--all-nodes")
    assert re.search(f"no list of nodes: 401 Unauthorized: .*: {tmp_path}/.* was written at .* ago$", done.err)
    server.stop()
    done = cluster.nftproxy("status", "--all-nodes")
    assert (done.status, len(done.err.splitlines())) == (1, 1)
    assert "no list of nodes: " in done.err


def test_no_key_is_left_behind(tmp_path: Path, cluster: FleetOfAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    """kr8s writes a kubeconfig's certificates and keys into files, and they are gone with the command."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    cluster.add("node-a", status_of("node-a"))
    assert cluster.nftproxy("status", "--all-nodes").status == 0
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--node", "a", "--all-nodes"), "give one of --node, --node-selector and --all-nodes"),
        (("--context", "x"), "--kubeconfig and --context need --node, --node-selector or --all-nodes"),
    ],
)
def test_options_that_contradict_each_other(cluster: FleetOfAgents, arguments: tuple[str, ...], message: str) -> None:
    """Two ways to choose nodes, and credentials without nodes, are errors of usage."""
    done = cluster.nftproxy("status", *arguments)
    assert done.status == 2
    assert message in done.err
