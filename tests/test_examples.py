"""The examples keep their word: they render to what is written beside them, and packets do what they say.

`UPDATE_EXAMPLES=1 pytest tests/test_examples.py` writes what they render to instead.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

import nftproxy as nftproxy_library
from nftproxy.conformance.probes import INTERFACES, MORE_IPS
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.check import check_ruleset
from nftproxy.lab import (
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
    topology,
)
from nftproxy.model.events import HostAddresses, Put
from nftproxy.model.objects import Node, Service
from nftproxy.model.settings import Capabilities, Settings
from nftproxy.pipeline import Pipeline
from nftproxy.sources.files import load, load_config
from tests.support.command import nftproxy
from tests.support.explained import case_of
from tests.support.explained import outcomes as outcomes_of
from tests.support.factories import renderer

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted(path.name for path in (CHECKOUT / "examples").iterdir() if (path / "manifests").is_dir())
POD, HOST, OUTSIDE, REMOTE_POD = Origin.POD, Origin.NODE, Origin.OUTSIDE, Origin.REMOTE_POD

CONNECTIONS = 64
"""How many show every one of up to three endpoints, but for once in 50 billion times."""

EXPECTED = {(name, "hash"): "expected.nft" for name in EXAMPLES} | {("session-affinity", "map"): "expected-map.nft"}
"""The file that holds what an example renders to, by example and way of remembering IPv6 clients."""

each_example = pytest.mark.parametrize("example", EXAMPLES)
each_expected = pytest.mark.parametrize(
    ("example", "affinity"), EXPECTED, ids=["-".join(key).removesuffix("-hash") for key in EXPECTED]
)


# ---- the files -----------------------------------------------------------------------------------------------------


def expected(example: str, affinity: str = "hash") -> Path:
    """The file that an example's rules are written in."""
    return CHECKOUT / "examples" / example / EXPECTED[example, affinity]


@each_expected
def test_an_example_renders_to_what_is_expected(example: str, affinity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `render` prints, in the words of examples/README.md, is what is written beside the manifests."""
    monkeypatch.chdir(CHECKOUT)
    where = f"examples/{example}"
    options = ["--node", "node-a", "--config", f"{where}/config.yaml", "--ipv6-affinity", affinity]
    done = nftproxy("render", f"{where}/manifests", *options)
    assert done.status == 0, done.err
    if os.environ.get("UPDATE_EXAMPLES"):
        expected(example, affinity).write_text(done.out)
    assert done.out == expected(example, affinity).read_text()


def questions(example: str) -> list[list[str]]:
    """What is explained of an example: all of each Service, and each connection that is claimed below."""
    objects = load([CHECKOUT / "examples" / example / "manifests"]).objects
    keys = sorted(each.key for each in objects if isinstance(each, Service))
    ways = [[f"{bracketed(way.address)}:{way.port}/{way.protocol}", *client(way)] for way in CLAIMS.get(example, ())]
    return [*([f"svc/{key}"] for key in keys), *ways]


def bracketed(address: str) -> str:
    """An address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


def client(way: Way) -> list[str]:
    """The option that says where a connection comes from."""
    if way.origin is Origin.NODE and way.source is None:
        return ["--from", "node"]
    return ["--from", way.source or topology.DEFAULT_SOURCES[way.origin][":" in way.address]]


@each_example
def test_an_example_is_explained(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `explain` says of an example's Services, and of the connections below, is written beside the manifests."""
    monkeypatch.chdir(CHECKOUT)
    where = Path("examples") / example
    config, _ = load_config(where / "config.yaml")
    manifests = nftproxy_library.load(where / "manifests")
    cluster = nftproxy_library.Cluster(manifests, "node-a", config, capabilities=Capabilities(wide_maps=False))
    texts = [
        f"$ nftproxy explain {' '.join(question)} ...\n{cluster.explain(question[0], *question[2:])}\n"
        for question in questions(example)
    ]
    file = CHECKOUT / where / "explained.txt"
    if os.environ.get("UPDATE_EXAMPLES"):
        file.write_text("\n".join(texts))
    assert "\n".join(texts) == file.read_text()


@each_example
def test_an_example_has_all_parts(example: str) -> None:
    """An example is manifests, a configuration, what they render to and how that is explained, and nothing else."""
    directory = CHECKOUT / "examples" / example
    parts = {"manifests", "config.yaml", "explained.txt"} | {
        file for (name, _), file in EXPECTED.items() if name == example
    }
    assert {path.name for path in directory.iterdir()} == parts
    assert {path.suffix for path in (directory / "manifests").iterdir()} == {".yaml"}


@each_example
def test_an_example_explains_itself(example: str) -> None:
    """Every file that people write begins with a comment."""
    directory = CHECKOUT / "examples" / example
    for file in (directory / "config.yaml", *(directory / "manifests").iterdir()):
        assert file.read_text().startswith("# "), file


@each_example
def test_an_example_is_at_home_in_the_lab(example: str) -> None:
    """Each example is about the lab's node, and takes the lab's pods for local: so it can be tried there."""
    directory = CHECKOUT / "examples" / example
    (node,) = (each for each in load([directory / "manifests"]).objects if isinstance(each, Node))
    assert node.name == topology.NODE_NAME
    assert node.addresses == (topology.NODE_IP, topology.NODE_IP6)
    assert [str(cidr) for cidr in node.pod_cidrs] == [topology.POD_CIDR, topology.POD_CIDR6]
    config, warnings = load_config(directory / "config.yaml")
    assert [str(cidr) for cidr in config.cluster_cidrs] == [topology.CLUSTER_CIDR, topology.CLUSTER_CIDR6]
    assert not warnings


def test_every_example_is_in_the_table() -> None:
    """examples/README.md has a line for each example, and for no other."""
    text = (CHECKOUT / "examples" / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[([\w-]+)\]\(\1/\) ", text, re.MULTILINE)) == EXAMPLES


def test_the_table_names_what_there_is() -> None:
    """Each set, map and chain that examples/README.md sends a reader to is in that example's rules."""
    text = (CHECKOUT / "examples" / "README.md").read_text()
    for example, names in re.findall(r"^\| \[([\w-]+)\].*\|(.*)\|$", text, re.MULTILINE):
        rules = "".join(path.read_text() for path in (CHECKOUT / "examples" / example).glob("expected*.nft"))
        for name in re.findall(r"`([^`]+)`", names):
            pattern = re.escape(name).replace(r"\.\.\.", r"[\w-]+")
            assert re.search(rf"^  (set|map|chain) {pattern} \{{$", rules, re.MULTILINE), f"{example}: {name}"


# ---- the kernel ----------------------------------------------------------------------------------------------------


@each_expected
def test_a_kernel_takes_the_rules_of_an_example(example: str, affinity: str) -> None:
    """What is expected loads into an empty namespace, and then once more."""
    if affinity == "map" and not probe().capabilities.wide_maps:
        pytest.skip("this libnftables can't have maps that remember IPv6 clients")
    result = check_ruleset(expected(example, affinity).read_text())
    assert result.ok, result


class Way(NamedTuple):
    """Connections that an example says something about."""

    origin: Origin
    address: str
    port: int = 80
    protocol: str = "tcp"
    source: str | None = None


def at(port: int, *addresses: str, masqueraded: bool = False) -> set[Outcome]:
    """The outcomes of connections that reach each of these addresses at `port`."""
    return {endpoint(address, port, masqueraded=masqueraded) for address in addresses}


def hidden(port: int, *addresses: str) -> set[Outcome]:
    """The same for connections whose source is hidden."""
    return at(port, *addresses, masqueraded=True)


STRANGER = "192.0.2.200"

# example: connections, and all that becomes of them
CLAIMS: dict[str, dict[Way, set[Outcome]]] = {
    "cluster-ip": {
        Way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.1.4", "10.1.2.4"),
        Way(POD, "10.96.0.10", source="10.1.0.4"): at(8080, "10.1.1.4", "10.1.2.4") | hidden(8080, "10.1.0.4"),
        Way(OUTSIDE, "10.96.0.10"): hidden(8080, "10.1.0.4", "10.1.1.4", "10.1.2.4"),
        Way(POD, "10.96.0.10", 81): {TCP_RESET},
        Way(POD, "10.96.0.20"): {TCP_RESET},
        Way(HOST, "10.96.0.20"): {TCP_RESET},
        Way(POD, "10.96.7.7"): {DROPPED},
    },
    "dual-stack": {
        Way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.1.4", "10.1.2.4"),
        Way(POD, "fd00:96::10"): at(8080, "fd00:1::4", "fd00:1:0:1::4"),
        Way(POD, "fd00:96::20", 5432): at(5432, "fd00:1::5"),
    },
    "node-port": {
        Way(OUTSIDE, "192.168.0.2", 30080): hidden(8080, "10.1.0.4", "10.1.1.4"),
        Way(POD, "192.168.0.2", 30080): hidden(8080, "10.1.0.4", "10.1.1.4"),
        Way(POD, "10.1.0.1", 30080): {NODE},
        Way(OUTSIDE, "192.168.0.2", 30443): {DROPPED},
        Way(POD, "192.168.0.2", 30443): at(8443, "10.1.1.6"),
    },
    "load-balancer-local": {
        Way(OUTSIDE, "203.0.113.7", 443): at(8443, "10.1.0.6", "10.1.0.7"),
        Way(OUTSIDE, "192.168.0.2", 30443): at(8443, "10.1.0.6", "10.1.0.7"),
        Way(POD, "203.0.113.7", 443): at(8443, "10.1.0.6", "10.1.0.7", "10.1.1.6"),
        Way(OUTSIDE, "203.0.113.8", 443): {UNTOUCHED},
    },
    "source-ranges": {
        Way(OUTSIDE, "203.0.113.9", 443): hidden(8443, "10.1.0.8"),
        Way(OUTSIDE, "203.0.113.9", 443, source=STRANGER): {DROPPED},
        Way(OUTSIDE, "192.168.0.2", 30444, source=STRANGER): hidden(8443, "10.1.0.8"),
        Way(POD, "203.0.113.9", 443): hidden(8443, "10.1.0.8"),
        Way(REMOTE_POD, "203.0.113.9", 443): {DROPPED},
        Way(HOST, "203.0.113.9", 443): {DROPPED},
        Way(OUTSIDE, "2001:db8:113::9", 443): hidden(8443, "fd00:1::8"),
        Way(OUTSIDE, "2001:db8:113::9", 443, source="2001:db8::1"): {DROPPED},
        Way(OUTSIDE, "203.0.113.10", 443): {DROPPED},
        Way(POD, "10.96.0.41", 443): at(8443, "10.1.0.8"),
    },
    "client-limits": {
        Way(OUTSIDE, "10.96.0.40", 443): hidden(8443, "10.1.0.8"),
        Way(OUTSIDE, "10.96.0.40", 443, source="198.51.100.100"): {DROPPED},
        Way(OUTSIDE, "192.168.0.2", 30443): at(8443, "10.1.0.8"),
        Way(OUTSIDE, "192.168.0.2", 30443, source="198.51.100.100"): {DROPPED},
        Way(OUTSIDE, "fd00:c0a8::2", 30443, source="2001:db8:51::7"): {DROPPED},
        Way(POD, "fd00:96::40", 443): at(8443, "fd00:1::8"),
        Way(OUTSIDE, "203.0.113.9", 443): at(8443, "10.1.0.9"),
        Way(OUTSIDE, "203.0.113.9", 443, source=STRANGER): {DROPPED},
        Way(OUTSIDE, "203.0.113.25", 443): at(8443, "10.1.0.9"),
        Way(OUTSIDE, "203.0.113.25", 443, source=STRANGER): {DROPPED},
        Way(OUTSIDE, "192.168.0.2", 30444): at(8443, "10.1.0.9"),
        Way(OUTSIDE, "192.168.0.2", 30444, source=STRANGER): {DROPPED},
        Way(HOST, "192.168.0.2", 30444): hidden(8443, "10.1.0.9"),
        Way(POD, "192.168.0.2", 30444): {DROPPED},
        Way(POD, "10.96.0.41", 443): at(8443, "10.1.0.9"),
    },
    "topology": {
        Way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.1.4"),
        Way(POD, "10.96.0.11", 6379): at(6379, "10.1.0.9"),
        Way(POD, "10.96.0.12"): at(9200, "10.1.0.10", "10.1.1.10", "10.1.2.10"),
    },
    "terminating": {
        Way(POD, "10.96.0.60"): at(8080, "10.1.1.21"),
        Way(POD, "10.96.0.61"): at(8080, "10.1.0.22", "10.1.1.22"),
        Way(OUTSIDE, "203.0.113.62", 443): at(8443, "10.1.0.23"),
        Way(POD, "203.0.113.62", 443): at(8443, "10.1.1.23"),
    },
    "udp-and-sctp": {
        Way(POD, "10.96.0.2", 53, "udp"): at(5353, "10.1.0.2", "10.1.1.2"),
        Way(POD, "10.96.0.2", 53, "tcp"): at(5353, "10.1.0.2", "10.1.1.2"),
        Way(POD, "10.96.0.2", 53, "sctp"): {PORT_UNREACHABLE},
        Way(POD, "10.96.0.70", 3868, "sctp"): at(3868, "10.1.0.30", "10.1.1.30"),
        Way(OUTSIDE, "192.168.0.2", 30868, "sctp"): hidden(3868, "10.1.0.30", "10.1.1.30"),
    },
    "algorithms": {
        Way(POD, "10.96.0.20", 53, "udp"): at(5353, "10.1.0.6", "10.1.1.6"),
        Way(POD, "10.96.0.40", 5060, "udp"): at(5060, "10.1.0.9", "10.1.1.10"),
    },
    "conflicts": {
        Way(OUTSIDE, "203.0.113.9"): hidden(8080, "10.1.0.4"),
        Way(OUTSIDE, "203.0.113.9", 8443): hidden(8443, "10.1.1.14"),
        Way(POD, "10.96.0.11"): at(8080, "10.1.1.14"),
        Way(POD, "10.96.0.10"): at(8080, "10.1.0.4"),
        Way(OUTSIDE, "192.168.0.2"): hidden(8080, "10.1.1.15"),
        Way(OUTSIDE, "192.168.0.2", 22): {NODE},
        Way(OUTSIDE, "192.168.0.2", 30080): hidden(8080, "10.1.0.16"),
        Way(POD, "10.96.0.14"): at(8080, "10.1.0.17"),
    },
    "external-ips": {
        Way(OUTSIDE, "203.0.113.9"): hidden(8080, "10.1.0.4", "10.1.1.4"),
        Way(POD, "2001:db8:113::9"): hidden(8080, "fd00:1::4", "fd00:1:0:1::4"),
        Way(OUTSIDE, "203.0.113.25", 25): at(2525, "10.1.0.25"),
        Way(POD, "203.0.113.25", 25): at(2525, "10.1.0.25", "10.1.1.25"),
    },
    "internal-local": {
        Way(POD, "10.96.0.80", 4317): at(4317, "10.1.0.40"),
        Way(POD, "10.96.0.81"): {DROPPED},
    },
    "silent-endpoints": {
        Way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.1.4"),
        Way(OUTSIDE, "192.168.0.2", 30080): hidden(8080, "10.1.0.4", "10.1.1.4"),
        Way(POD, "10.96.0.20"): at(8080, "10.1.0.4", "10.1.1.4"),
    },
    "everything": {
        Way(POD, "10.96.0.1", 443): at(6443, "192.168.0.3"),
        Way(POD, "fd00:96::2", 53, "udp"): at(5353, "fd00:1::2", "fd00:1:0:1::2"),
        Way(POD, "10.96.0.80", 4317): at(4317, "10.1.0.3"),
        Way(POD, "10.96.0.10"): at(8080, "10.1.0.4", "10.1.0.5", "10.1.1.4"),
        Way(OUTSIDE, "fd00:c0a8::2", 30080): hidden(8080, "fd00:1::4", "fd00:1::5", "fd00:1:0:1::4"),
        Way(OUTSIDE, "203.0.113.7", 443): at(8443, "10.1.0.6"),
        Way(OUTSIDE, "203.0.113.7", 443, source=STRANGER): {DROPPED},
        Way(POD, "10.96.0.12"): at(9200, "10.1.0.10"),
        Way(POD, "10.96.0.61", 50051): at(50051, "10.1.0.11", "10.1.1.11"),
        Way(POD, "10.96.0.62"): {TCP_RESET},
        Way(OUTSIDE, "203.0.113.25", 25): hidden(2525, "10.1.1.13"),
        Way(POD, "10.96.0.26", 25): {TCP_RESET},
        Way(POD, "10.96.0.70", 3868, "sctp"): at(3868, "10.1.0.14"),
    },
}  # fmt: skip


def outcomes(lab: Lab, way: Way) -> set[Outcome]:
    """Everything that becomes of some new connections."""
    return set(lab.connect_many([Probe(*way)] * CONNECTIONS))


def test_packets_are_sent_through_every_example() -> None:
    """Each example has claims to prove; what session affinity claims is about more than one connection."""
    assert sorted([*CLAIMS, "session-affinity"]) == EXAMPLES


@pytest.mark.parametrize("example", CLAIMS)
def test_explanations_say_what_an_example_says(example: str) -> None:
    """Each connection below is explained as it goes: to those pods, with its source kept or hidden, or to none."""
    directory = CHECKOUT / "examples" / example
    config, _ = load_config(directory / "config.yaml")
    pipeline = Pipeline(topology.NODE_NAME, Settings(config), renderer())
    pipeline.apply([*load([directory / "manifests"]).listing(), Put(HostAddresses(INTERFACES - set(MORE_IPS)))])
    asked = {way: replace(Probe(*way), source=source_of(way)) for way in CLAIMS[example]}
    assert {way: set(outcomes_of(case_of(pipeline, probe))) for way, probe in asked.items()} == CLAIMS[example]


def source_of(way: Way) -> str:
    """The address that a connection comes from, which of the node is one of those that it has."""
    is_ipv6 = ":" in way.address
    if way.origin is Origin.NODE:
        return way.source or (topology.NODE_IP6 if is_ipv6 else topology.NODE_IP)
    return way.source or topology.DEFAULT_SOURCES[way.origin][is_ipv6]


@pytest.mark.parametrize("example", CLAIMS)
def test_packets_do_what_an_example_says(example: str, lab: Lab) -> None:
    """Connections reach every pod that the example says they do, and no other, with their source kept or hidden."""
    lab.load(expected(example).read_text())
    assert {way: outcomes(lab, way) for way in CLAIMS[example]} == CLAIMS[example]


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
    if affinity == "map" and not probe().capabilities.wide_maps:
        pytest.skip("this libnftables can't have maps that remember IPv6 clients")
    lab.load(expected("session-affinity", affinity).read_text())
    clients = [client.format(number) for number in range(100, 100 + CONNECTIONS)]
    first, *others = (lab.connect_many(Probe(POD, address, port, source=each) for each in clients) for _ in range(4))
    assert len({outcome.endpoint for outcome in first}) == 3
    assert all(again == first for again in others)
