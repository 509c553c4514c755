"""The packet lab reports the known effects of hand-written rules."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from nftproxy_conformance.lab import (
    ANSWERED,
    DROPPED,
    NODE,
    PING,
    PORT_UNREACHABLE,
    TCP_RESET,
    UNTOUCHED,
    Address,
    Kind,
    Lab,
    LabError,
    Namespace,
    Origin,
    Outcome,
    Probe,
    RealHost,
    RealNetwork,
    RealNode,
    endpoint,
    is_even,
    obstacle,
)
from nftproxy_conformance.lab.frames import ANSWERS, is_intact, parse
from nftproxy_conformance.lab.outcome import FIRST_PORT, LAST_PORT
from nftproxy_conformance.lab.topology import NODE_IP

from nftproxy.model.errors import Unavailable
from nftproxy.trace.frames import TRANSPORTS, crc32c, packet
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


class Addresses(NamedTuple):
    """The addresses of a family for tests."""

    family: str  # nft's word for it
    vip: str
    pod: str  # on the node
    remote_pod: str
    node: str
    extra: str

    def at(self, port: int, ip: str) -> str:
        """An address and port in the form of `dnat to`."""
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


IP = Addresses("ip", "10.96.0.10", "10.1.0.4", "10.1.1.4", "192.168.0.2", "192.168.0.77")
IP6 = Addresses("ip6", "fd00:96::10", "fd00:1::4", "fd00:1:0:1::4", "fd00:c0a8::2", "fd00:c0a8::77")

each_family = pytest.mark.parametrize("ip", [IP, IP6], ids=["ip", "ip6"])
each_protocol = pytest.mark.parametrize("protocol", list(TRANSPORTS))
each_origin = pytest.mark.parametrize("origin", list(Origin), ids=lambda origin: origin.name)


def each_way(test: Callable[..., None]) -> Callable[..., None]:
    """Try both families, all protocols, and connections from everywhere."""
    marked: Callable[..., None] = each_family(each_protocol(each_origin(test)))
    return marked


FROM_AFAR = [Origin.POD, Origin.OUTSIDE, Origin.REMOTE_POD]


def nat(ip: Addresses, target: str, *, then: str = "", of: str = "meta l4proto { tcp, udp, sctp } th dport 80") -> str:
    """Rules that translate packets to the VIP, by default to its port 80, with `then` in postrouting."""
    rule = f"{ip.family} daddr {ip.vip} {of} dnat to {target}"
    return f"""
        table {ip.family} nat {{
          chain prerouting {{ type nat hook prerouting priority -100
            {rule}
          }}
          chain output {{ type nat hook output priority -100
            {rule}
          }}
          chain postrouting {{ type nat hook postrouting priority 100
            {then}
          }}
        }}"""


def filtered(ip: Addresses, hook: str, verdict: str, of: str = "meta l4proto { tcp, udp, sctp }") -> str:
    """Rules with a verdict in a hook, by default for all packets except ICMP."""
    return f"""
        table {ip.family} filter {{
          chain {hook} {{ type filter hook {hook} priority 0
            {of} {verdict}
          }}
        }}"""


# ---- without translation ---------------------------------------------------------------------------------------


@each_way
def test_without_rules_a_connection_is_forwarded_untouched(
    lab: Lab, ip: Addresses, protocol: str, origin: Origin
) -> None:
    """Without rules a connection to a virtual IP leaves through the uplink as it came, and can be answered."""
    outcome = lab.connect(origin, ip.vip, 80, protocol)
    assert (outcome, outcome.interface) == (UNTOUCHED, "eth0")
    assert lab.reply(outcome) == (ip.vip, 80)


@each_way
def test_a_closed_port_of_the_node_is_delivery_not_rejection(
    lab: Lab, ip: Addresses, protocol: str, origin: Origin
) -> None:
    """A connection to a closed port of the node has been delivered to it."""
    assert lab.connect(origin, ip.node, 80, protocol) == NODE


@each_family
@each_origin
def test_the_node_answers_pings(lab: Lab, ip: Addresses, origin: Origin) -> None:
    """The node answers pings to its own and to translated addresses, and other pings leave it untranslated."""
    assert lab.connect(origin, ip.node, 0, PING) == ANSWERED
    assert lab.connect(origin, ip.vip, 0, PING) == UNTOUCHED
    lab.load(nat(ip, ip.node, of="meta l4proto { icmp, ipv6-icmp }"))
    assert lab.connect(origin, ip.vip, 0, PING) == ANSWERED
    lab.load("flush ruleset" + nat(ip, ip.pod, of="meta l4proto { icmp, ipv6-icmp }"))
    assert lab.connect(origin, ip.vip, 0, PING) == endpoint(ip.pod, 0)


@each_family
@each_origin
@pytest.mark.parametrize(("verdict", "outcome"), [("reject", PORT_UNREACHABLE), ("drop", DROPPED)])
def test_a_verdict_on_pings_is_told(lab: Lab, ip: Addresses, origin: Origin, verdict: str, outcome: Outcome) -> None:
    """The lab distinguishes a rejected ping from a dropped ping."""
    kind = "icmpv6" if ip is IP6 else "icmp"
    lab.load(filtered(ip, "input", verdict, of=f"{kind} type echo-request"))
    assert lab.connect(origin, ip.node, 0, PING) == outcome


@each_family
def test_addresses_come_and_go(lab: Lab, ip: Addresses) -> None:
    """An address that is given to the node is the node's until it is taken away."""
    lab.add_address(ip.extra)
    assert lab.connect(Origin.OUTSIDE, ip.extra, 80) == NODE
    lab.remove_address(ip.extra)
    assert lab.connect(Origin.OUTSIDE, ip.extra, 80) == UNTOUCHED


# ---- translation -----------------------------------------------------------------------------------------------


@each_way
def test_a_translated_connection_shows_its_endpoint(lab: Lab, ip: Addresses, protocol: str, origin: Origin) -> None:
    """DNAT to a pod is seen, with the client's own address, and the answer comes back from the virtual IP."""
    lab.load(nat(ip, ip.at(8080, ip.pod)))
    outcome = lab.connect(origin, ip.vip, 80, protocol)
    assert (outcome, outcome.interface) == (endpoint(ip.pod, 8080), "cni0")
    assert outcome.probe is not None
    assert outcome.source == (outcome.probe.source, outcome.probe.sport)
    assert lab.reply(outcome) == (ip.vip, 80)


@each_way
def test_a_masqueraded_connection_shows_the_source_it_got(
    lab: Lab, ip: Addresses, protocol: str, origin: Origin
) -> None:
    """Masquerading is seen, and the answer still comes back from the virtual IP."""
    lab.load(nat(ip, ip.at(8080, ip.remote_pod), then="masquerade fully-random"))
    # the node's own connections have the uplink's address already, so give them another
    lab.add_address(ip.extra)
    source = ip.extra if origin is Origin.NODE else None
    outcome = lab.connect(origin, ip.vip, 80, protocol, source=source)
    assert (outcome, outcome.interface) == (endpoint(ip.remote_pod, 8080, masqueraded=True), "eth0")
    assert outcome.source is not None
    assert outcome.source.ip == ip.node
    assert lab.reply(outcome) == (ip.vip, 80)


@each_family
@each_protocol
def test_a_pod_that_reaches_itself_goes_out_where_it_came_in(lab: Lab, ip: Addresses, protocol: str) -> None:
    """Hairpin: the lab tells the translated packet from its own, on the same interface."""
    lab.load(nat(ip, ip.at(8080, ip.pod), then="ct status dnat masquerade"))
    outcome = lab.connect(Origin.POD, ip.vip, 80, protocol, source=ip.pod)
    assert (outcome, outcome.interface) == (endpoint(ip.pod, 8080, masqueraded=True), "cni0")
    assert lab.reply(outcome) == (ip.vip, 80)


@each_way
def test_the_node_can_be_an_endpoint(lab: Lab, ip: Addresses, protocol: str, origin: Origin) -> None:
    """A connection that is translated to the node's own address is an endpoint's, not merely the node's."""
    lab.load(nat(ip, ip.at(8080, ip.node)))
    outcome = lab.connect(origin, ip.vip, 80, protocol)
    assert (outcome, outcome.interface) == (endpoint(ip.node, 8080), "")
    with pytest.raises(ValueError, match="no host could answer"):
        lab.reply(outcome)


@pytest.mark.parametrize("change", ["10.1.0.5:8080", "10.1.0.4:9090"])
def test_a_source_port_names_a_flow(lab: Lab, change: str) -> None:
    """The same source port again is the same flow, which keeps its endpoint.  By default every connection is new."""
    lab.load(nat(IP, "10.1.0.4:8080"))
    old = lab.connect(Origin.POD, IP.vip, 80, "udp", sport=1234)
    lab.load(f"flush chain ip nat prerouting\nadd rule ip nat prerouting meta l4proto udp dnat to {change}")
    ip, _, port = change.partition(":")
    assert lab.connect(Origin.POD, IP.vip, 80, "udp", sport=1234) == old
    assert lab.connect(Origin.POD, IP.vip, 80, "udp") == endpoint(ip, int(port))
    lab.node.flush_conntrack()
    assert lab.connect(Origin.POD, IP.vip, 80, "udp", sport=1234) == endpoint(ip, int(port))


@each_family
@pytest.mark.parametrize("origin", FROM_AFAR, ids=lambda origin: origin.name)
def test_established_connections_go_on_or_end(lab: Lab, ip: Addresses, origin: Origin) -> None:
    """The next packet goes on as before.  If connection tracking forgets, another endpoint resets it, or the rules."""
    lab.load(nat(ip, ip.at(8080, ip.pod)))
    (made,) = lab.establish([lab.connect(origin, ip.vip, 80)])
    assert lab.next_packets([made, made]) == [made, made]
    lab.forget()
    lab.load("flush ruleset" + nat(ip, ip.at(8080, ip.remote_pod)))
    assert lab.next_packets([made]) == [TCP_RESET]
    for reject, outcome in (("reject with tcp reset", TCP_RESET), ("drop", DROPPED)):
        lab.forget()
        lab.load("flush ruleset" + filtered(ip, "forward", reject, of="meta l4proto tcp"))
        assert lab.next_packets([made]) == [outcome]


@each_family
def test_connections_of_the_node_itself_are_not_established(lab: Lab, ip: Addresses) -> None:
    """Its kernel knows nothing of them.  Nor are those to the node, or of other protocols."""
    tried = [
        Probe(Origin.NODE, ip.vip, 80),
        Probe(Origin.POD, ip.node, 80),
        Probe(Origin.POD, ip.vip, 80, "udp"),
        Probe(Origin.POD, ip.vip, 0, PING),
    ]
    assert lab.establish(lab.connect_many(tried)) == []


# ---- refusal ---------------------------------------------------------------------------------------------------

PLACES = [
    *(("prerouting", origin) for origin in FROM_AFAR),
    *(("forward", origin) for origin in FROM_AFAR),
    ("output", Origin.NODE),
    *(("input", origin) for origin in Origin),
]
each_place = pytest.mark.parametrize(("hook", "origin"), PLACES, ids=lambda value: getattr(value, "name", value))


def destination(ip: Addresses, hook: str) -> str:
    """An address whose packets pass the hook."""
    return ip.node if hook == "input" else ip.vip


@each_family
@each_protocol
@each_place
@pytest.mark.parametrize(("verdict", "outcome"), [("reject", PORT_UNREACHABLE), ("drop", DROPPED)])
def test_a_verdict_is_told(
    lab: Lab, ip: Addresses, protocol: str, hook: str, origin: Origin, verdict: str, outcome: Outcome
) -> None:
    """A drop in any hook is silence, and a plain reject reaches the client as an ICMP error."""
    lab.load(filtered(ip, hook, verdict))
    assert lab.connect(origin, destination(ip, hook), 80, protocol) == outcome


@each_family
@each_place
def test_a_reset_is_told_from_an_icmp_error(lab: Lab, ip: Addresses, hook: str, origin: Origin) -> None:
    """`reject with tcp reset` reaches the client as a reset, from any hook."""
    lab.load(filtered(ip, hook, "reject with tcp reset", of="tcp flags syn"))
    assert lab.connect(origin, destination(ip, hook), 80) == TCP_RESET


@pytest.mark.parametrize(
    ("ip", "code"),
    [
        (IP, "net-unreachable"),
        (IP, "host-unreachable"),
        (IP, "prot-unreachable"),
        (IP, "net-prohibited"),
        (IP, "host-prohibited"),
        (IP, "admin-prohibited"),
        (IP6, "no-route"),
        (IP6, "admin-prohibited"),
        (IP6, "addr-unreachable"),
    ],
    ids=str,
)
def test_icmp_errors_have_names(lab: Lab, ip: Addresses, code: str) -> None:
    """The way of a rejection has nft's name."""
    kind = "icmp" if ip is IP else "icmpv6"
    lab.load(filtered(ip, "forward", f"reject with {kind} type {code}"))
    assert lab.connect(Origin.POD, ip.vip, 80) == Outcome(Kind.REJECTED, how=f"icmp {code}")


@each_family
@pytest.mark.parametrize("reject", ["reject", "reject with tcp reset"])
def test_a_refusal_after_translation_is_recognised(lab: Lab, ip: Addresses, reject: str) -> None:
    """A rejection after translation names the virtual IP again, so the client accepts it."""
    lab.load(nat(ip, ip.at(8080, ip.pod)) + filtered(ip, "forward", reject, of="meta l4proto tcp"))
    expected = PORT_UNREACHABLE if reject == "reject" else TCP_RESET
    assert [lab.connect(origin, ip.vip, 80) for origin in FROM_AFAR] == [expected] * 3


@each_family
def test_a_refusal_is_not_held_back_by_rate_limits(lab: Lab, ip: Addresses) -> None:
    """Thousands of ICMP errors a second are all sent."""
    lab.load(filtered(ip, "forward", "reject"))
    outcomes = lab.connect_many(Probe(Origin.OUTSIDE, ip.vip, 80, "udp") for _ in range(5000))
    assert set(outcomes) == {PORT_UNREACHABLE}


def test_no_route_is_the_nodes_own_refusal() -> None:
    """A packet that the node's kernel refuses to send is rejected, with the name of the error."""
    with Lab() as cut_off:
        cut_off.node.ip("route del default", "route add unreachable 198.51.100.0/24")
        outcome = cut_off.connect(Origin.NODE, "198.51.100.1", 80, source=IP.node)
    assert outcome == Outcome(Kind.REJECTED, how="errno EHOSTUNREACH")


def test_connections_of_real_programs_are_none_of_the_labs() -> None:
    """The lab distinguishes a real first packet, which has options, from its own."""
    real = bytes.fromhex(
        "4500003cf303400040067c09c0a800020a010104a9a0271106ad7dd600000000a002faf0cbdd0000020405b40402080a1af3177000000000"
        "0103030a"
    )
    assert parse(real) is None


# ---- many ------------------------------------------------------------------------------------------------------


def test_fifty_thousand_connections_have_fifty_thousand_outcomes(lab: Lab) -> None:
    """Each of very many connections, of all kinds in turn, has the outcome that its port is due."""
    for ip in (IP, IP6):
        verdict = "th dport 81 reject\nmeta l4proto { tcp, udp, sctp } th dport 82 drop"
        lab.load(nat(ip, ip.at(8080, ip.pod)) + filtered(ip, "forward", verdict) + filtered(ip, "output", verdict))
    due = {
        (ip, port): outcome
        for ip in (IP, IP6)
        for port, outcome in ((80, endpoint(ip.pod, 8080)), (81, PORT_UNREACHABLE), (82, DROPPED), (83, UNTOUCHED))
    }
    combinations = [
        (Probe(origin, ip.vip, port, protocol), due[ip, port])
        for origin in Origin
        for protocol in TRANSPORTS
        for ip, port in due
    ]
    asked = [combinations[number % len(combinations)] for number in range(50_000)]
    begin = time.perf_counter()
    outcomes = lab.connect_many(probe for probe, _ in asked)
    seconds = time.perf_counter() - begin
    assert outcomes == [outcome for _, outcome in asked]
    print(f"{len(asked) / seconds:,.0f} probes/s")  # noqa: T201 - the figure is for whoever reads the test's output


def test_no_connection_continues_another(lab: Lab) -> None:
    """When a client has used all its source ports, connections that reuse them are still new."""
    lab.load("table ip nat { chain prerouting { type nat hook prerouting priority -100; ct state new counter; }; }")
    many = LAST_PORT - FIRST_PORT + 1000
    lab.connect_many(Probe(Origin.POD, IP.vip, 80) for _ in range(many))
    assert f"counter packets {many} " in lab.load("list table ip nat")


def test_a_masquerading_node_does_not_run_out_of_ports(lab: Lab) -> None:
    """Very many masqueraded connections to one endpoint all arrive, as old entries are flushed in time."""
    lab.load(nat(IP, "10.1.0.4:8080", then="masquerade fully-random"))
    sources = [f"198.51.100.{number}" for number in range(1, 255)]
    probes = (Probe(Origin.OUTSIDE, IP.vip, 80, source=sources[number % len(sources)]) for number in range(70_000))
    assert set(lab.connect_many(probes)) == {endpoint("10.1.0.4", 8080, masqueraded=True)}


def test_rules_may_change_while_connections_are_tried(lab: Lab) -> None:
    """A thread loads rules while another connects, and every connection meets either the old or the new rules."""
    lab.load(nat(IP, "10.1.0.4:8080"))
    change = "flush chain ip nat prerouting\nadd rule ip nat prerouting meta l4proto udp dnat to 10.1.0.{}:8080"
    finished = threading.Event()

    def alternate() -> int:
        count = 0
        while not finished.is_set():
            lab.load(change.format(4 + count % 2))
            count += 1
        return count

    with ThreadPoolExecutor() as executor:
        changes = executor.submit(alternate)
        try:
            outcomes = lab.connect_many(Probe(Origin.POD, IP.vip, 80, "udp") for _ in range(20_000))
        finally:
            finished.set()
    assert changes.result() > 10
    assert set(outcomes) == {endpoint("10.1.0.4", 8080), endpoint("10.1.0.5", 8080)}


# ---- the lab itself --------------------------------------------------------------------------------------------


def test_rules_may_match_the_pods_interface(lab: Lab) -> None:
    """The interface to the pods has the name that a bridge plugin gives it."""
    lab.load(filtered(IP, "prerouting", 'iifname "cni0" drop'))
    assert lab.connect(Origin.POD, IP.vip, 80) == DROPPED
    assert lab.connect(Origin.OUTSIDE, IP.pod, 80).interface == "cni0"


def test_a_lab_leaves_nothing_behind() -> None:
    """Threads, sockets and processes end with the lab."""

    def left() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    before = left()
    with Lab() as lab:
        lab.load(nat(IP, "10.1.0.4:8080"))
        process = lab.node.popen(["sleep", "60"])
        lab.connect(Origin.NODE, IP.vip, 80)
        lab.connect(Origin.POD, IP.vip, 80)
    assert left() == before
    assert process.returncode == -9


def test_a_lost_marker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """When frames are lost on the lab's own ways nothing is said about connections, least of all "dropped"."""
    with Lab() as lab:
        lab.load('table netdev t { chain c { type filter hook ingress device "eth0" priority 0; drop; }; }')
        with monkeypatch.context() as patched:
            patched.setattr("nftproxy_conformance.lab.wire.PATIENCE", 0.05)
            with pytest.raises(LabError, match="marker"):
                lab.connect(Origin.POD, IP.vip, 80)
        lab.reset()
        assert lab.connect(Origin.POD, IP.vip, 80) == UNTOUCHED


def test_a_lost_delivery_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside large transfers of other programs the node's sockets lose packets, which the rules didn't drop."""

    def small(namespace: Namespace, family: int, number: int) -> socket.socket:
        end = namespace.socket(family, socket.SOCK_RAW, number)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        return end

    monkeypatch.setattr("nftproxy_conformance.lab.wire._delivery_socket", small)
    with Lab() as lab, pytest.raises(LabError, match="lost frames"):
        lab.connect_many([Probe(Origin.OUTSIDE, NODE_IP, port) for port in range(30000, 30200)])


def test_refused_rules_are_an_error_with_the_librarys_words(lab: Lab) -> None:
    """Rules that don't load raise, and nothing of them is applied."""
    with pytest.raises(LabError, match="syntax error"):
        lab.load("table ip t { }\nnonsense")
    assert lab.load("list tables") == ""


@pytest.mark.parametrize(
    "probe",
    [
        Probe(Origin.POD, "10.96.0.10", 80, "esp"),
        Probe(Origin.POD, "10.96.0.10", 80, PING),
        Probe(Origin.POD, "10.96.0.256", 80),
    ],
    ids=str,
)
def test_an_impossible_probe_is_an_error(lab: Lab, probe: Probe) -> None:
    """A probe of no known protocol, or to no address, is a mistake in the test."""
    with pytest.raises(ValueError, match=r"no protocol|no port|not an IP address"):
        lab.connect_many([probe])


def test_processes_and_functions_run_inside() -> None:
    """A namespace has its own interfaces, for processes, functions and sockets alike."""
    with Namespace("test") as namespace:
        namespace.ip("link add only0 type veth peer name other0")
        assert "only0" in namespace.run(["ip", "-brief", "link"])
        assert "only0" in namespace.call(Path("/proc/thread-self/net/dev").read_text)
        command = ["nsenter", f"--net={namespace.path}", "ip", "-brief", "link"]
        assert "only0" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        with pytest.raises(Unavailable, match="only1"):
            namespace.ip("link set only1 up")


def test_labs_can_stand_side_by_side() -> None:
    """Rules in a lab don't affect another lab."""
    with Lab() as one, Lab() as other:
        one.load(nat(IP, "10.1.0.4:8080"))
        assert one.connect(Origin.POD, IP.vip, 80) == endpoint("10.1.0.4", 8080)
        assert other.connect(Origin.POD, IP.vip, 80) == UNTOUCHED


def test_a_killed_process_leaves_no_namespace() -> None:
    """Namespaces are anonymous: they end with the process, and so do the processes in them, however it ends."""
    script = (
        "import os; from nftproxy_conformance.lab import Lab; lab = Lab();"
        "lab.node.popen(['sleep', '60'], stdout=-3, stderr=-3);"
        "print(lab.node.run(['readlink', '/proc/self/ns/net']), flush=True); os.kill(os.getpid(), 9)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("net:["), done.stderr
    name = done.stdout.strip()
    wait_until(lambda: name not in {link.name for link in network_namespaces()})


def network_namespaces() -> Iterator[Path]:
    """The network namespaces of all threads on this machine, as "net:[number]"."""
    for link in Path("/proc").glob("[0-9]*/task/*/ns/net"):
        with contextlib.suppress(OSError):  # the thread has just ended
            yield link.readlink()


def test_outcomes_read_well() -> None:
    """An outcome prints as a short sentence, for assertions that fail."""
    outcome = Outcome(
        Kind.ENDPOINT, Address("fd00:1::4", 8080), True, interface="cni0", source=Address("fd00:1::1", 4242)
    )
    assert repr(outcome) == "<ENDPOINT [fd00:1::4]:8080 via cni0 masqueraded as fd00:1::1>"
    assert repr(PORT_UNREACHABLE) == "<REJECTED (icmp port-unreachable)>"
    assert outcome == endpoint("fd00:1::4", 8080, masqueraded=True)
    assert outcome != endpoint("fd00:1::4", 8080)


def test_evenness_is_judged_by_chance() -> None:
    """A fair draw is even.  A draw that favours an endpoint, misses an endpoint or finds a strange endpoint isn't."""
    ends = [("10.1.0.4", 80), ("10.1.0.5", 80), ("10.1.0.6", 80)]

    def drawn(*counts: int) -> list[Outcome]:
        return [
            endpoint(*end) for end, count in zip([*ends, ("10.1.0.7", 80)], counts, strict=False) for _ in range(count)
        ]

    assert is_even(drawn(980, 1050, 970), ends)
    assert not is_even(drawn(1200, 900, 900), ends)
    assert not is_even(drawn(1500, 1500, 0), ends)
    assert not is_even(drawn(1000, 1000, 1000, 1), ends)
    with pytest.raises(ValueError, match="nothing"):
        is_even(drawn(3, 3, 3), ends)


def test_crc32c_is_castagnolis() -> None:
    """The published check value holds."""
    assert crc32c(b"123456789") == 0xE3069283


@each_protocol
@pytest.mark.parametrize("size", [4, 16])
def test_a_damaged_packet_is_noticed(protocol: str, size: int) -> None:
    """The lab writes correct checksums, and a changed byte makes them wrong."""
    transport = TRANSPORTS[protocol]
    for build in (transport.opening, ANSWERS[protocol]):
        good = packet(b"\x0a" * size, b"\x0b" * size, transport, build(40000, 80, 77))
        assert is_intact(good)
        bad = bytearray(good)
        bad[-1] ^= 1
        assert not is_intact(bytes(bad))


# ---- real connections ------------------------------------------------------------------------------------------


class Cluster(NamedTuple):
    """A node, a pod on it and on another node, and a client outside."""

    node: RealNode
    web: RealHost
    remote: RealHost
    client: RealHost


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A small cluster of real pods, with every server on port 8080."""
    with RealNetwork() as network:
        node, other = network.node("node-a"), network.node("node-b")
        made = Cluster(
            node,
            node.pod("web", "10.1.0.4", "fd00:1::4"),
            other.pod("remote", "10.1.1.4", "fd00:1:0:1::4"),
            network.host("client", "198.51.100.7", "2001:db8:100::7"),
        )
        for server in (made.web, made.remote, node):
            server.serve(8080, "tcp")
            server.serve(8080, "udp")
        yield made


real_protocols = pytest.mark.parametrize("protocol", ["tcp", "udp"])


def of(host: RealHost, ip: Addresses) -> str:
    """The host's address of the family."""
    return host.address if ip is IP else host.address6


@each_family
@real_protocols
@pytest.mark.parametrize("target", ["web", "remote", "node"])
def test_real_pods_answer_real_clients(cluster: Cluster, ip: Addresses, protocol: str, target: str) -> None:
    """A pod, the node and a client outside reach a pod here, a pod elsewhere, and the node by a translated address."""
    server: RealHost = getattr(cluster, target)
    cluster.node.node.reset()
    # the network sends load balancers' addresses to this node for all clients
    vip = ip._replace(vip="203.0.113.7" if ip is IP else "2001:db8:113::7")
    cluster.node.load(nat(vip, ip.at(8080, of(server, ip)), then="ct status dnat masquerade"))
    for client in (cluster.web, cluster.node, cluster.client):
        assert client.ask(vip.vip, 80, protocol).name == server.name


@each_family
@real_protocols
def test_a_real_server_sees_the_client_unless_it_is_masqueraded(cluster: Cluster, ip: Addresses, protocol: str) -> None:
    """The server tells the client's address and port as they arrive."""
    cluster.node.node.reset()
    direct = cluster.client.ask(of(cluster.web, ip), 8080, protocol, sport=4321)
    assert direct == ("web", Address(of(cluster.client, ip), 4321))
    cluster.node.load(nat(ip, ip.at(8080, ip.pod), then="masquerade"))
    gateway = "10.1.0.1" if ip is IP else "fd00:1::1"
    assert cluster.client.ask(of(cluster.web, ip), 8080, protocol).client.ip == gateway


def test_a_conversation_outlives_the_rules(cluster: Cluster) -> None:
    """A connection that stands goes on when the rules that translated it have gone."""
    cluster.node.node.reset()
    cluster.node.load(nat(IP, "10.1.0.4:8080"))
    with cluster.node.talk(IP.vip, 80) as conversation:
        first = conversation.ask()
        cluster.node.load("flush chain ip nat output")
        assert conversation.ask() == first


def test_real_clients_are_refused_and_ignored(cluster: Cluster) -> None:
    """A refusal is an error at once, silence a timeout."""
    cluster.node.node.reset()
    with pytest.raises(ConnectionRefusedError):
        cluster.client.ask(cluster.web.address, 81)
    with pytest.raises(ConnectionRefusedError):
        cluster.client.ask(cluster.web.address, 81, "udp")
    cluster.node.load(filtered(IP, "forward", "drop"))
    with pytest.raises(TimeoutError):
        cluster.client.ask(cluster.web.address, 8080, timeout=0.1)


def test_pods_come_and_go(cluster: Cluster) -> None:
    """A pod that is closed is gone at once, and another may take its name and address."""
    cluster.node.node.reset()
    for _ in range(3):
        pod = cluster.node.pod("fleeting", "10.1.0.9", "fd00:1::9")
        pod.serve(8080)
        assert cluster.client.ask("10.1.0.9", 8080).name == "fleeting"
        pod.close()
        with pytest.raises(OSError, match="No route to host"):
            cluster.client.ask("10.1.0.9", 8080)


def test_slow_pod_answers_late(cluster: Cluster) -> None:
    """TCP segments of a pod with a delay arrive late and intact, from a connection's first answer on."""
    cluster.node.node.reset()
    slow = cluster.node.pod("slow", "10.1.0.8", "fd00:1::8", delay=0.2)
    try:
        slow.serve(8080)
        for address in (slow.address, slow.address6):
            began = time.monotonic()
            with cluster.client.talk(address, 8080, timeout=30) as conversation:
                assert time.monotonic() - began >= 0.2
                assert conversation.ask().name == "slow"
                assert time.monotonic() - began >= 0.4
    finally:
        slow.close()


def test_the_network_can_send_addresses_elsewhere() -> None:
    """A load balancer's addresses lead to the first node until they are sent to another."""
    with RealNetwork() as network:
        first, second = network.node("node-a"), network.node("node-b")
        client = network.host("client", "198.51.100.7", "2001:db8:100::7")
        for node in (first, second):
            node.serve(8080)
            node.load(nat(IP._replace(vip="203.0.113.7"), f"{node.address}:8080"))
        assert client.ask("203.0.113.7", 80).name == "node-a"
        network.route("203.0.113.0/24", second)
        assert client.ask("203.0.113.7", 80).name == "node-b"


def test_kept_datagram_sockets_have_ports_of_their_own() -> None:
    """No two of 500 sockets that are open to one server share a port, so each gets the answers to its own questions."""
    with RealNetwork() as network, contextlib.ExitStack() as stack:
        client = network.host("client", "198.51.100.7", "2001:db8:100::7")
        server = network.host("server", "198.51.100.8", "2001:db8:100::8")
        server.serve(5353, "udp")
        kept = [stack.enter_context(client.talk("198.51.100.8", 5353, "udp", timeout=30)) for _ in range(500)]
        assert len({each.ask().client.port for each in kept}) == 500
