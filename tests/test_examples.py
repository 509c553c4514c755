"""The examples: their manifests render to the files beside them, and packets go where the examples say.

`UPDATE_EXAMPLES=1 pytest tests/test_examples.py` writes these files instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from nftproxy_conformance.lab import (
    DROPPED,
    NODE,
    PORT_UNREACHABLE,
    TCP_RESET,
    UNTOUCHED,
    Lab,
    Origin,
    Outcome,
    Probe,
    endpoint,
)
from nftproxy_conformance.lab.topology import (
    CLUSTER_CIDR,
    CLUSTER_CIDR6,
    DEFAULT_SOURCES,
    NODE_IP,
    NODE_IP6,
    NODE_NAME,
    POD_CIDR,
    POD_CIDR6,
)
from nftproxy_conformance.strategies.probes import MORE_IPS, NODE_ADDRESSES

from nftproxy import Cluster
from nftproxy import load as load_manifests
from nftproxy.installed_fields import FIELDS
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.ruleset_check import CheckResult
from nftproxy.kernel.ruleset_check import load as load_rules
from nftproxy.model.addresses import host_port, port_text
from nftproxy.model.events import HostAddresses, Put
from nftproxy.model.objects import Node, Service
from nftproxy.model.settings import Capabilities
from nftproxy.rules.transaction import Transaction
from nftproxy.sources.config_documents import load_config
from nftproxy.sources.files import load
from tests.support.command import nftproxy
from tests.support.examples import CHECKOUT, EXAMPLES, example_pipeline
from tests.support.explained import case_of, outcomes
from tests.support.factories import INSTALLED_KINDS
from tests.support.flowtables import loadable
from tests.support.goldens import EXAMPLES_DIRECTORY, EXPECTED, SKELETON, expected, update
from tests.support.selection import every

POD, HOST, OUTSIDE, REMOTE_POD = Origin.POD, Origin.NODE, Origin.OUTSIDE, Origin.REMOTE_POD

CONNECTIONS = 64
"""Connections to try.  They miss one of up to three endpoints once in 50 billion times."""

IS_UPDATE = bool(os.environ.get("UPDATE_EXAMPLES"))

each_example = pytest.mark.parametrize("example", EXAMPLES)
each_expected = pytest.mark.parametrize(
    ("example", "affinity"), EXPECTED, ids=["-".join(key).removesuffix("-hash") for key in EXPECTED]
)


# ---- the files -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name files as examples/README.md does."""
    monkeypatch.chdir(CHECKOUT)


def rendered(example: str, manifests: str, affinity: str) -> str:
    """The output of `render` for an example, as examples/README.md runs it."""
    options = ["--node", NODE_NAME, "--config", f"examples/{example}/config.yaml", "--ipv6-affinity", affinity]
    done = nftproxy("render", f"examples/{example}/{manifests}", *options)
    assert done.status == 0, done.err
    return done.out


def test_a_node_without_services_renders_to_the_skeleton() -> None:
    """`skeleton.nft` is the output of `render` for a Node alone."""
    text = rendered("node-port", "manifests/node.yaml", "hash")
    if IS_UPDATE:
        SKELETON.write_text(text)
    assert text == SKELETON.read_text()


@each_expected
def test_an_example_renders_to_what_is_expected(example: str, affinity: str) -> None:
    """The output of `render` is the skeleton with `expected.nft`, byte for byte."""
    text = rendered(example, "manifests", affinity)
    if IS_UPDATE:
        update(example, affinity, text)
    assert text == expected(example, affinity)


def questions(example: str) -> Iterator[tuple[str, str | None]]:
    """The questions to explain for an example: all of its Services, and each connection that is claimed below."""
    objects = load([EXAMPLES_DIRECTORY / example / "manifests"], INSTALLED_KINDS).objects
    yield from ((f"svc/{key}", None) for key in sorted(each.key for each in objects if isinstance(each, Service)))
    for way in CLAIMS.get(example, ()):
        is_plain = way.origin is HOST and not way.source
        to = port_text(host_port(way.address, way.port), way.protocol)
        yield to, "node" if is_plain else source_of(way)


def source_of(way: Probe) -> str:
    """The source address of a connection.  For the node it is the first of the node's addresses."""
    own = {HOST: (NODE_IP, NODE_IP6), **DEFAULT_SOURCES}
    return way.source or own[way.origin][":" in way.address]


@each_example
def test_an_example_is_explained(example: str) -> None:
    """`explained.txt` has the output of `explain` for an example's Services, and for the connections below."""
    where = EXAMPLES_DIRECTORY / example
    config, _ = load_config(where / "config.yaml", FIELDS)
    cluster = Cluster(
        load_manifests(where / "manifests"), NODE_NAME, config, capabilities=Capabilities(wide_maps=False)
    )
    text = "\n".join(
        f"$ nftproxy explain {to}{f' --from {source}' if source else ''} ...\n{cluster.explain(to, source)}\n"
        for to, source in questions(example)
    )
    if IS_UPDATE:
        (where / "explained.txt").write_text(text)
    assert text == (where / "explained.txt").read_text()


@each_example
def test_an_example_has_all_parts(example: str) -> None:
    """An example has manifests, a configuration, `expected.nft` and `explained.txt`, and nothing else."""
    directory = EXAMPLES_DIRECTORY / example
    parts = {"manifests", "config.yaml", "explained.txt"} | {
        file for (name, _), file in EXPECTED.items() if name == example
    }
    assert {path.name for path in directory.iterdir()} == parts
    assert {path.suffix for path in (directory / "manifests").iterdir()} == {".yaml"}


@each_example
def test_an_example_explains_itself(example: str) -> None:
    """Every file that people write begins with a comment."""
    directory = EXAMPLES_DIRECTORY / example
    for file in (directory / "config.yaml", *(directory / "manifests").iterdir()):
        assert file.read_text().startswith("# "), file


@each_example
def test_an_example_is_at_home_in_the_lab(example: str) -> None:
    """Each example is about the lab's node, and takes the lab's pods for local: so it can be tried there."""
    directory = EXAMPLES_DIRECTORY / example
    (node,) = (each for each in load([directory / "manifests"]).objects if isinstance(each, Node))
    assert node.name == NODE_NAME
    assert node.addresses == (NODE_IP, NODE_IP6)
    assert [str(cidr) for cidr in node.pod_cidrs] == [POD_CIDR, POD_CIDR6]
    config, warnings = load_config(directory / "config.yaml", FIELDS)
    assert [str(cidr) for cidr in config.cluster_cidrs] == [CLUSTER_CIDR, CLUSTER_CIDR6]
    assert not warnings


def test_every_example_is_in_the_table() -> None:
    """examples/README.md has a line for each example, and for no other."""
    text = (EXAMPLES_DIRECTORY / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[([\w-]+)\]\(\1/\) ", text, re.MULTILINE)) == EXAMPLES


def test_the_table_names_what_there_is() -> None:
    """Each set, map, chain and flowtable that examples/README.md names is in that example's rules."""
    text = (EXAMPLES_DIRECTORY / "README.md").read_text()
    for example, names in re.findall(r"^\| \[([\w-]+)\].*\|(.*)\|$", text, re.MULTILINE):
        rules = "".join(expected(*key) for key in EXPECTED if key[0] == example)
        for name in re.findall(r"`([^`]+)`", names):
            pattern = re.escape(name).replace(r"\.\.\.", r"[\w-]+")
            assert re.search(rf"^  (set|map|chain|flowtable) {pattern} \{{$", rules, re.MULTILINE), f"{example}: {name}"


# ---- the kernel ----------------------------------------------------------------------------------------------------


def skip_unless_possible(affinity: str) -> None:
    """Skip a test of maps that remember IPv6 clients where libnftables can't have these."""
    if affinity == "map" and not probe().capabilities.wide_maps:
        pytest.skip("this libnftables can't have maps that remember IPv6 clients")


def loaded_twice(text: str) -> CheckResult:
    """The result of `check` for these rules, in the test's own namespace, which has no other rules."""
    Kernel().apply(Transaction("flush ruleset\n"))
    return load_rules(loadable(text))


@pytest.mark.usefixtures("namespace")
@each_expected
def test_a_kernel_takes_the_rules_of_an_example(example: str, affinity: str) -> None:
    """The expected rules load into an empty namespace, and then once more."""
    skip_unless_possible(affinity)
    result = loaded_twice(expected(example, affinity))
    assert result.ok, result


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("example", every(4, EXAMPLES))
def test_a_kernel_takes_the_skeleton_and_what_an_example_adds(example: str) -> None:
    """Loading `expected.nft` after `skeleton.nft` makes the sets, maps, chains and elements of the rendering."""
    added = EXAMPLES_DIRECTORY / example / "expected.nft"
    texts = SKELETON.read_text() + added.read_text(), expected(example)
    in_two, at_once = map(loaded_twice, texts)
    assert in_two.ok, in_two
    counted = ("sets", "maps", "chains", "elements")
    assert [getattr(in_two, each) for each in counted] == [getattr(at_once, each) for each in counted]


def way(origin: Origin, address: str, port: int = 80, protocol: str = "tcp", source: str | None = None) -> Probe:
    """A connection that an example makes a claim about."""
    return Probe(origin, address, port, protocol, source)


def at(port: int, *addresses: str, masqueraded: bool = False) -> set[Outcome]:
    """The outcomes of connections that reach each of these addresses at `port`."""
    return {endpoint(address, port, masqueraded=masqueraded) for address in addresses}


def hidden(port: int, *addresses: str) -> set[Outcome]:
    """The outcomes of `at`, for connections whose source is hidden."""
    return at(port, *addresses, masqueraded=True)


STRANGER = "192.0.2.200"

# for each example: connections, with all of their outcomes
CLAIMS: dict[str, dict[Probe, set[Outcome]]] = {
    "cluster-ip": {
        way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.1.4", "10.1.2.4"),
        way(POD, "10.96.0.10", source="10.1.0.4"): at(8080, "10.1.1.4", "10.1.2.4") | hidden(8080, "10.1.0.4"),
        way(OUTSIDE, "10.96.0.10"): hidden(8080, "10.1.0.4", "10.1.1.4", "10.1.2.4"),
        way(POD, "10.96.0.10", 81): {TCP_RESET},
        way(POD, "10.96.0.20"): {TCP_RESET},
        way(HOST, "10.96.0.20"): {TCP_RESET},
        way(POD, "10.96.7.7"): {DROPPED},
    },
    "dual-stack": {
        way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.1.4", "10.1.2.4"),
        way(POD, "fd00:96::10"): at(8080, "fd00:1::4", "fd00:1:0:1::4"),
        way(POD, "fd00:96::20", 5432): at(5432, "fd00:1::5"),
    },
    "node-port": {
        way(OUTSIDE, "192.168.0.2", 30080): hidden(8080, "10.1.0.4", "10.1.1.4"),
        way(POD, "192.168.0.2", 30080): hidden(8080, "10.1.0.4", "10.1.1.4"),
        way(POD, "10.1.0.1", 30080): {NODE},
        way(OUTSIDE, "192.168.0.2", 30443): {DROPPED},
        way(POD, "192.168.0.2", 30443): at(8443, "10.1.1.6"),
    },
    "load-balancer-local": {
        way(OUTSIDE, "203.0.113.7", 443): at(8443, "10.1.0.6", "10.1.0.7"),
        way(OUTSIDE, "192.168.0.2", 30443): at(8443, "10.1.0.6", "10.1.0.7"),
        way(POD, "203.0.113.7", 443): at(8443, "10.1.0.6", "10.1.0.7", "10.1.1.6"),
        way(OUTSIDE, "203.0.113.8", 443): {UNTOUCHED},
    },
    "source-ranges": {
        way(OUTSIDE, "203.0.113.9", 443): hidden(8443, "10.1.0.8"),
        way(OUTSIDE, "203.0.113.9", 443, source=STRANGER): {DROPPED},
        way(OUTSIDE, "192.168.0.2", 30444, source=STRANGER): hidden(8443, "10.1.0.8"),
        way(POD, "203.0.113.9", 443): hidden(8443, "10.1.0.8"),
        way(REMOTE_POD, "203.0.113.9", 443): {DROPPED},
        way(HOST, "203.0.113.9", 443): {DROPPED},
        way(OUTSIDE, "2001:db8:113::9", 443): hidden(8443, "fd00:1::8"),
        way(OUTSIDE, "2001:db8:113::9", 443, source="2001:db8::1"): {DROPPED},
        way(OUTSIDE, "203.0.113.10", 443): {DROPPED},
        way(POD, "10.96.0.41", 443): at(8443, "10.1.0.8"),
    },
    "client-limits": {
        way(OUTSIDE, "10.96.0.40", 443): hidden(8443, "10.1.0.8"),
        way(OUTSIDE, "10.96.0.40", 443, source="198.51.100.100"): {DROPPED},
        way(OUTSIDE, "192.168.0.2", 30443): at(8443, "10.1.0.8"),
        way(OUTSIDE, "192.168.0.2", 30443, source="198.51.100.100"): {DROPPED},
        way(OUTSIDE, "fd00:c0a8::2", 30443, source="2001:db8:51::7"): {DROPPED},
        way(POD, "fd00:96::40", 443): at(8443, "fd00:1::8"),
        way(OUTSIDE, "203.0.113.9", 443): at(8443, "10.1.0.9"),
        way(OUTSIDE, "203.0.113.9", 443, source=STRANGER): {DROPPED},
        way(OUTSIDE, "203.0.113.25", 443): at(8443, "10.1.0.9"),
        way(OUTSIDE, "203.0.113.25", 443, source=STRANGER): {DROPPED},
        way(OUTSIDE, "192.168.0.2", 30444): at(8443, "10.1.0.9"),
        way(OUTSIDE, "192.168.0.2", 30444, source=STRANGER): {DROPPED},
        way(HOST, "192.168.0.2", 30444): hidden(8443, "10.1.0.9"),
        way(POD, "192.168.0.2", 30444): {DROPPED},
        way(POD, "10.96.0.41", 443): at(8443, "10.1.0.9"),
    },
    "topology": {
        way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.1.4"),
        way(POD, "10.96.0.11", 6379): at(6379, "10.1.0.9"),
        way(POD, "10.96.0.12"): at(9200, "10.1.0.10", "10.1.1.10", "10.1.2.10"),
    },
    "terminating": {
        way(POD, "10.96.0.60"): at(8080, "10.1.1.21"),
        way(POD, "10.96.0.61"): at(8080, "10.1.0.22", "10.1.1.22"),
        way(OUTSIDE, "203.0.113.62", 443): at(8443, "10.1.0.23"),
        way(POD, "203.0.113.62", 443): at(8443, "10.1.1.23"),
    },
    "udp-and-sctp": {
        way(POD, "10.96.0.2", 53, "udp"): at(5353, "10.1.0.2", "10.1.1.2"),
        way(POD, "10.96.0.2", 53, "tcp"): at(5353, "10.1.0.2", "10.1.1.2"),
        way(POD, "10.96.0.2", 53, "sctp"): {PORT_UNREACHABLE},
        way(POD, "10.96.0.70", 3868, "sctp"): at(3868, "10.1.0.30", "10.1.1.30"),
        way(OUTSIDE, "192.168.0.2", 30868, "sctp"): hidden(3868, "10.1.0.30", "10.1.1.30"),
    },
    "algorithms": {
        way(POD, "10.96.0.20", 53, "udp"): at(5353, "10.1.0.6", "10.1.1.6"),
        way(POD, "10.96.0.40", 5060, "udp"): at(5060, "10.1.0.9", "10.1.1.10"),
        way(POD, "10.96.0.50"): at(8080, "10.1.0.11", "10.1.1.11"),
    },
    "conflicts": {
        way(OUTSIDE, "203.0.113.9"): hidden(8080, "10.1.0.4"),
        way(OUTSIDE, "203.0.113.9", 8443): hidden(8443, "10.1.1.14"),
        way(POD, "10.96.0.11"): at(8080, "10.1.1.14"),
        way(POD, "10.96.0.10"): at(8080, "10.1.0.4"),
        way(OUTSIDE, "192.168.0.2"): hidden(8080, "10.1.1.15"),
        way(OUTSIDE, "192.168.0.2", 22): {NODE},
        way(OUTSIDE, "192.168.0.2", 30080): hidden(8080, "10.1.0.16"),
        way(POD, "10.96.0.14"): at(8080, "10.1.0.17"),
    },
    "external-ips": {
        way(OUTSIDE, "203.0.113.9"): hidden(8080, "10.1.0.4", "10.1.1.4"),
        way(POD, "2001:db8:113::9"): hidden(8080, "fd00:1::4", "fd00:1:0:1::4"),
        way(OUTSIDE, "203.0.113.25", 25): at(2525, "10.1.0.25"),
        way(POD, "203.0.113.25", 25): at(2525, "10.1.0.25", "10.1.1.25"),
        way(POD, "203.0.113.25", 80): {TCP_RESET},
    },
    "internal-local": {
        way(POD, "10.96.0.80", 4317): at(4317, "10.1.0.40"),
        way(POD, "10.96.0.81"): {DROPPED},
    },
    "failover": {
        way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.1.4"),
        way(OUTSIDE, "192.168.0.2", 30080): hidden(8080, "10.1.0.4", "10.1.1.4"),
        way(POD, "10.96.0.20"): at(8080, "10.1.0.4", "10.1.1.4"),
    },
    "fast-path": {
        way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.1.4"),
        way(OUTSIDE, "10.96.0.10"): hidden(8080, "10.1.0.4", "10.1.1.4"),
    },
    "everything": {
        way(POD, "10.96.0.1", 443): at(6443, "192.168.0.3"),
        way(POD, "fd00:96::2", 53, "udp"): at(5353, "fd00:1::2", "fd00:1:0:1::2"),
        way(POD, "10.96.0.80", 4317): at(4317, "10.1.0.3"),
        way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.0.5", "10.1.1.4"),
        way(OUTSIDE, "fd00:c0a8::2", 30080): hidden(8080, "fd00:1::4", "fd00:1::5", "fd00:1:0:1::4"),
        way(OUTSIDE, "203.0.113.7", 443): at(8443, "10.1.0.6"),
        way(OUTSIDE, "203.0.113.7", 443, source=STRANGER): {DROPPED},
        way(POD, "10.96.0.12"): at(9200, "10.1.0.10"),
        way(POD, "10.96.0.61", 50051): at(50051, "10.1.0.11", "10.1.1.11"),
        way(POD, "10.96.0.62"): {TCP_RESET},
        way(OUTSIDE, "203.0.113.25", 25): hidden(2525, "10.1.1.13"),
        way(POD, "10.96.0.26", 25): {TCP_RESET},
        way(POD, "10.96.0.70", 3868, "sctp"): at(3868, "10.1.0.14"),
    },
}  # fmt: skip


def test_packets_are_sent_through_every_example() -> None:
    """Each example has claims to prove, and a claim about session affinity has more than one connection."""
    assert sorted([*CLAIMS, "session-affinity"]) == EXAMPLES


@pytest.mark.parametrize("example", CLAIMS)
def test_explanations_say_what_an_example_says(example: str) -> None:
    """The explanation of each connection below names the claimed pods, and whether its source is kept or hidden."""
    pipeline = example_pipeline(example, wide_maps=True)
    pipeline.ingest([Put(HostAddresses(NODE_ADDRESSES - set(MORE_IPS)))])
    cases = {way: case_of(pipeline, replace(way, source=source_of(way))) for way in CLAIMS[example]}
    assert {way: set(outcomes(case)) for way, case in cases.items()} == CLAIMS[example]


@pytest.mark.parametrize("example", CLAIMS)
def test_packets_do_what_an_example_says(example: str, lab: Lab) -> None:
    """Connections reach every pod that the example claims, and no other, with their source kept or hidden."""
    lab.load(loadable(expected(example)))
    assert {way: set(lab.connect_many([way] * CONNECTIONS)) for way in CLAIMS[example]} == CLAIMS[example]


# fronts of Service shop/cart, and clients
SITES = [
    ("10.96.0.50", 80, "10.1.0.{}"),
    ("192.168.0.2", 30050, "10.1.0.{}"),
    ("fd00:96::50", 80, "fd00:1::{:x}"),
    ("fd00:c0a8::2", 30050, "fd00:1::{:x}"),
]


@pytest.mark.parametrize(("address", "port", "client"), SITES, ids=[f"{site[0]}-{site[1]}" for site in SITES])
@pytest.mark.parametrize("affinity", ["hash", "map"])
def test_a_client_sticks_to_a_pod(affinity: str, address: str, port: int, client: str, lab: Lab) -> None:
    """Each client of the session-affinity example comes back to the pod it had, and clients spread over all pods."""
    skip_unless_possible(affinity)
    lab.load(expected("session-affinity", affinity))
    clients = [client.format(number) for number in range(100, 100 + CONNECTIONS)]
    first, *others = (lab.connect_many(Probe(POD, address, port, source=each) for each in clients) for _ in range(4))
    assert len({outcome.endpoint for outcome in first}) == 3
    assert all(again == first for again in others)
