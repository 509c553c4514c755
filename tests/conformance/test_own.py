"""An operator's own cluster: which connections are tried, and how it is shown to a proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nftproxy_conformance.lab import PING, Origin, Probe
from nftproxy_conformance.trials.own import OWN_SOURCES, OwnCluster, flows, own_cluster

from nftproxy.config.parse_config import EMPTY_CONFIG
from nftproxy.model.addresses import Family
from nftproxy.model.errors import BadInput, Problem
from nftproxy.sources.documents import to_yaml
from nftproxy.sources.files import load_documents
from tests.support import objects
from tests.support.command import nftproxy

CONFIG: dict[str, Any] = dict(EMPTY_CONFIG)
NODE = objects.node("worker-1", "10.20.0.5") | {"spec": {"podCIDRs": ["10.244.1.0/24"]}}
WEB = objects.service(
    "web",
    {"type": "LoadBalancer", "loadBalancerSourceRanges": ["198.51.100.0/24", "0.0.0.0/0", "192.0.2.0/25"]},
    vips=["10.43.0.10"],
    ports=["80:30080"],
    status=objects.balancer("203.0.113.9"),
)
PODS = objects.endpoint_slice("web-1", "10.244.1.7@worker-1", "10.244.2.7@worker-2", "172.16.0.9@worker-1")


def cluster(*more: dict[str, Any], node: str = "", config: dict[str, Any] = CONFIG) -> OwnCluster:
    """A Service with pods on two nodes, and more objects."""
    return own_cluster([NODE, WEB, PODS, *more], config, node)


def test_every_front_is_tried_from_each_kind_of_source() -> None:
    """ClusterIP, load balancer address and node port at each of the node's addresses, from five kinds of clients."""
    tried = flows(cluster().world)
    fronts = {(each.address, each.port) for each in tried}
    assert fronts == {("10.43.0.10", 80), ("203.0.113.9", 80), ("10.20.0.5", 30080), ("10.244.1.1", 30080)}
    common = {
        (Origin.POD, "10.244.1.254"),
        (Origin.NODE, OWN_SOURCES[Family.IPV4]),
        (Origin.REMOTE_POD, "10.244.2.7"),
        (Origin.OUTSIDE, "198.51.100.200"),
        (Origin.POD, "10.244.1.7"),
    }
    ranges = {(Origin.OUTSIDE, "198.51.100.254"), (Origin.OUTSIDE, "192.0.2.126")}
    for address, _ in fronts:
        from_where = {(each.origin, each.source) for each in tried if each.address == address}
        assert from_where == (common | ranges if address == "203.0.113.9" else common)


def test_words_of_the_configuration_are_tried() -> None:
    """Pings to virtual addresses, and a port that external addresses don't have, from the same clients."""
    words = {"externalIPCIDRs": ["203.0.113.0/24"], "externalAddresses": "closed", "ping": "answer"}
    given = cluster(config=CONFIG | {"nftproxy": words}).world
    more = set(flows(given)) - set(flows(cluster().world))
    assert {(each.protocol, each.address, each.port) for each in more} == {
        (PING, "10.43.0.10", 0),
        (PING, "203.0.113.9", 0),
        ("tcp", "203.0.113.9", 1),
    }
    assert [len([each for each in more if each.port == port]) for port in (0, 1)] == [5 + 7, 7]


def test_there_is_a_bound() -> None:
    """Beyond the bound, fronts are left out evenly.  The remaining fronts are tried in full."""
    many = [
        objects.service(f"more-{number}", vips=[f"10.43.{number // 250}.{1 + number % 250}"]) for number in range(1000)
    ]
    world = cluster(*many).world
    everything, some = flows(world, 10**9), flows(world, 1000)
    assert len(everything) > 4 * 1000
    assert 500 < len(some) <= 1000
    assert set(some) <= set(everything)
    last = [each for each in some if each.address.startswith("10.43.3.")]
    assert 0.1 < len(last) / len(some) < 0.4


def test_the_node_is_the_clusters_own() -> None:
    """The scratch node has the Node's address, a gateway for its pods, and routes to all of them."""
    shown = cluster().presentation()
    assert shown.site.addresses == ("10.20.0.5/32",)
    assert shown.site.pods == ("10.244.1.1/32",)
    assert shown.site.pod_networks == ("10.244.1.0/24", "172.16.0.9/32")
    assert cluster().world.interfaces == {"10.20.0.5", "10.244.1.1", *OWN_SOURCES.values()}


def test_objects_are_shown_as_they_are() -> None:
    """The API server gets the manifests with all fields.  Only namespace and time are added."""
    odd = WEB | {"metadata": {"name": "odd", "annotations": {"a": "b"}}}
    shown = cluster(odd, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}).documents
    (given,) = (each for each in shown if each["metadata"]["name"] == "odd")
    assert given["spec"] == WEB["spec"]
    metadata = {"annotations": {"a": "b"}, "namespace": "default", "creationTimestamp": "1970-01-01T00:00:00Z"}
    assert given["metadata"] == {"name": "odd"} | metadata
    assert "Pod" not in {each["kind"] for each in shown}


@pytest.mark.parametrize(
    ("mode", "given", "shown"),
    [
        ("BridgeInterface", {"bridgeInterface": "cbr0"}, {"bridgeInterface": "cni0"}),
        ("InterfaceNamePrefix", {"interfaceNamePrefix": "cali"}, {"interfaceNamePrefix": "cni0"}),
    ],
)
def test_interfaces_of_pods_are_the_labs(mode: str, given: dict[str, str], shown: dict[str, str]) -> None:
    """Interfaces of pods in the configuration become the scratch node's, and pods stay local."""
    made = cluster(config=CONFIG | {"detectLocalMode": mode, "detectLocal": given})
    assert made.configuration["detectLocal"] == shown
    assert made.presentation().configuration(made.world) == made.configuration


def test_a_node_is_needed() -> None:
    """Without a Node, with several and no name, or with a wrong name, the message says which there are."""
    other = objects.node("worker-2", "10.20.0.6")
    for given, name, message in (
        ([WEB], "", "--node must say which Node the proxy is on; there: none"),
        ([NODE, other], "", "--node must say which Node the proxy is on; there: worker-1, worker-2"),
        ([NODE, other], "worker-3", "no Node worker-3 is among the manifests; there: worker-1, worker-2"),
    ):
        with pytest.raises(BadInput) as error:
            own_cluster(given, CONFIG, name)
        assert str(error.value) == f"NFT113: {message}"
    assert own_cluster([NODE, other], CONFIG, "worker-2").world.node.name == "worker-2"


def test_a_fault_costs_only_what_it_names() -> None:
    """A fault of an object is a problem in the report, and the rest is tried."""
    broken = objects.service("broken", {"externalIPs": ["127.0.0.1"]}, vips=["10.43.0.11"])
    made = cluster(broken)
    assert [each.field for each in made.problems] == ["spec.externalIPs[0]"]
    assert Probe(Origin.OUTSIDE, "10.43.0.11", 80, "tcp", "198.51.100.200") in flows(made.world)


# The command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--against"], "--against needs --proxy"),
        (["--node", "a"], "--node needs --proxy"),
        (["--config", "config.yaml"], "--config needs --proxy"),
        (["--manifests", "."], "--manifests needs --proxy"),
        (["--proxy", "p"], "{config} is missing"),
        (["--proxy", "p {config}", "--templates", "."], "one of them"),
        (["--proxy", "p {config}", "--node", "a"], "--node needs --manifests"),
        (["--proxy", "p {config}", "--config", "nowhere.yaml"], "nowhere.yaml: No such file or directory"),
        (["--feature", "magic"], "no feature 'magic'; there are: ClusterIP, "),
    ],
)
def test_wrong_usage_is_named(options: list[str], message: str) -> None:
    """Wrong options end with status 2 and a message, before any trial."""
    done = nftproxy("conformance", *options)
    assert (done.status, done.out) == (2, "")
    assert message in done.err


def test_wrong_manifests_are_named(tmp_path: Path) -> None:
    """A file that can't be read, and a file without Services, end with status 2."""
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "nodes.yaml").write_text(to_yaml([{"apiVersion": "v1", "kind": "List", "items": [NODE]}]))
    for name, message in (
        ("broken.yaml", "is not YAML"),
        ("nodes.yaml", "no Service is among the manifests"),
    ):
        done = nftproxy("conformance", "--proxy", "p {config}", "--manifests", tmp_path / name)
        assert (done.status, done.out) == (2, "")
        assert message in done.err


def test_documents_of_all_shapes_are_read(tmp_path: Path) -> None:
    """Files and directories, YAML and JSON, several documents, and lists with and without types are read."""
    (tmp_path / "a.json").write_text(
        '{"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {"name": "a"}}]}'
    )
    (tmp_path / "b.yaml").write_text("kind: A\n---\n---\nkind: List\nitems: [{kind: B}, {kind: C}, 5]\n--- 7\n")
    problems: list[Problem] = []
    found = list(load_documents([tmp_path, tmp_path / "b.yaml"], problems))
    assert problems == []
    assert found[0] == {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    assert [each["kind"] for each in found[1:]] == ["A", "B", "C"] * 2
