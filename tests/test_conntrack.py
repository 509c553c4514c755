"""Stale UDP flows are forgotten and nothing else is: in the kernel, with packets that went through our rules.

The tables of conntrack are filled and read with another library than ours.  NFTPROXY_TESTS=long sweeps among a million
entries of others.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import itertools
import os
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, NFCTSocket

from nftproxy import conntrack, nfnetlink
from nftproxy.addresses import Address, Family
from nftproxy.conntrack import Conntrack, Sweeper
from nftproxy.errors import Unavailable
from nftproxy.flows import NO_ENDPOINTS, AddressPort, Sweeps
from nftproxy.kernel import Kernel
from nftproxy.lab import PORT_UNREACHABLE, UNTOUCHED, Lab, Origin, Outcome, RealNetwork, obstacle
from nftproxy.model import EndpointSlice, Service
from nftproxy.ruleset import Transaction
from nftproxy.state import Put, Removed
from tests.conftest import CLONE_NEWNET, Run
from tests.factories import IPV4, IPV6, pipeline, service, slice_of
from tests.packets.cluster import IP, Cluster, Ip, each_ip

in_a_lab = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

FRONT = "10.96.0.10 53"


class Tracked(NamedTuple):
    """An entry of conntrack: from `source` to `destination`, answered by `endpoint`; all "address port"."""

    source: str
    destination: str
    endpoint: str
    protocol: int = socket.IPPROTO_UDP
    zone: int = 0

    @property
    def family(self) -> int:
        """The entry's address family."""
        return socket.AF_INET6 if ":" in self.source else socket.AF_INET


def track(*entries: Tracked) -> None:
    """Have conntrack hold these entries."""
    for entry in entries:
        fields: dict[str, Any] = {"zone": entry.zone} if entry.zone else {}
        with NFCTSocket(nfgen_family=entry.family) as kernel:
            kernel.entry(
                "add",
                timeout=600,
                tuple_orig=_tuple(entry, entry.source, entry.destination),
                tuple_reply=_tuple(entry, entry.endpoint, entry.source),
                **fields,
            )


def _tuple(entry: Tracked, source: str, destination: str) -> Any:
    (saddr, sport), (daddr, dport) = source.split(), destination.split()
    return NFCTAttrTuple(
        family=entry.family, saddr=saddr, daddr=daddr, proto=entry.protocol, sport=int(sport), dport=int(dport)
    )


def tracked() -> set[Tracked]:
    """All that conntrack holds in this network namespace."""
    found = set()
    with NFCTSocket(nfgen_family=socket.AF_UNSPEC) as kernel:
        for message in kernel.dump():
            version = 6 if message["nfgen_family"] == socket.AF_INET6 else 4
            original, reply = message.get_attr("CTA_TUPLE_ORIG"), message.get_attr("CTA_TUPLE_REPLY")
            source, destination = (_end_of(original, version, which) for which in ("SRC", "DST"))
            protocol = original.get_attr("CTA_TUPLE_PROTO").get_attr("CTA_PROTO_NUM")
            zone = message.get_attr("CTA_ZONE") or 0
            found.add(Tracked(source, destination, _end_of(reply, version, "SRC"), protocol, zone))
    return found


def _end_of(flow: Any, version: int, which: str) -> str:
    address = flow.get_attr("CTA_TUPLE_IP").get_attr(f"CTA_IP_V{version}_{which}")
    return f"{address} {flow.get_attr('CTA_TUPLE_PROTO').get_attr(f'CTA_PROTO_{which}_PORT')}"


def end(text: str) -> AddressPort:
    """An address and port from "address port"."""
    address, port = text.split()
    return AddressPort(Address(address), int(port))


def sweeps(**usable: str) -> Sweeps:
    """Sweeps as `sweeps(**{"10.96.0.10 53": "10.1.0.4 53, 10.1.0.5 53"})`; "" is no endpoint."""
    return {end(front): frozenset(map(end, filter(None, texts.split(", ")))) for front, texts in usable.items()}


def sweep_once(wanted: Sweeps) -> int:
    """Sweep these fronts without resting; the number of entries deleted."""
    with closing(Sweeper(lambda _: None)) as sweeper:
        return sweeper.sweep(wanted).total()


class World(NamedTuple):
    """Addresses of one family, for entries that no packet made."""

    family: Family
    client: str
    vip: str
    other: str
    pod: str
    gone: str


WORLDS = [
    World(IPV4, "198.51.100.7", "10.96.0.10", "10.96.0.11", "10.1.0.4", "10.1.0.5"),
    World(IPV6, "2001:db8:100::7", "fd00:96::10", "fd00:96::11", "fd00:1::4", "fd00:1::5"),
]
each_world = pytest.mark.parametrize("world", WORLDS, ids=["ip", "ip6"])


def entries_of(world: World, *, port: int = 53) -> tuple[set[Tracked], set[Tracked]]:
    """Entries that are right or none of ours, and stale ones, where `pod` is the only endpoint of `vip` and `port`."""
    clients = [f"{world.client} {100 * port + number}" for number in range(10)]
    front, endpoint, lost = f"{world.vip} {port}", f"{world.pod} 5353", f"{world.gone} 5353"
    elsewhere = f"{world.other} {port}"
    right = {
        Tracked(clients[0], front, endpoint),
        Tracked(clients[1], elsewhere, lost),
        Tracked(clients[2], f"{world.vip} {port + 1000}", lost),
        Tracked(clients[3], front, lost, socket.IPPROTO_TCP),
        Tracked(clients[4], front, lost, socket.IPPROTO_SCTP),
        Tracked(clients[5], front, lost, zone=7),
        Tracked(clients[6], elsewhere, elsewhere),
        Tracked(front, clients[7], clients[7]),
    }
    stale = {
        Tracked(clients[5], front, lost),
        Tracked(clients[8], front, f"{world.pod} 5354"),
        Tracked(clients[9], front, front),
    }
    return right, stale


class Calls:
    """Counts the calls of a function of the module, and lets them happen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.count = 0
        self._real = getattr(conntrack, name)
        monkeypatch.setattr(conntrack, name, self._call)

    def _call(self, *arguments: Any) -> Any:
        self.count += 1
        return self._real(*arguments)


# ---- one sweep -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("namespace")
@each_world
@pytest.mark.parametrize("fronts", [1, 2, 9], ids=["one front", "several ports", "many ports"])
def test_only_stale_udp_flows_of_zone_0_go(monkeypatch: pytest.MonkeyPatch, world: World, fronts: int) -> None:
    """Those entries go that are UDP, to a front, elsewhere than to its endpoints, and in no zone of another's.

    No other is even tried.
    """
    tried = Calls(monkeypatch, "_delete")
    wanted: Sweeps = {}
    right, stale = set[Tracked](), set[Tracked]()
    for port in range(53, 53 + fronts):
        some_right, some_stale = entries_of(world, port=port)
        right, stale = right | some_right, stale | some_stale
        wanted |= sweeps(**{f"{world.vip} {port}": f"{world.pod} 5353"})
    track(*right, *stale)
    assert tracked() == right | stale
    assert sweep_once(wanted) == tried.count == len(stale)
    assert tracked() == right


@pytest.mark.usefixtures("namespace")
@each_world
def test_only_answers_with_an_address_of_ours_are_read(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Of what the kernel tells, answers in which no front's address stands are skipped as a whole."""
    read = Calls(monkeypatch, "_entry")
    track(*(Tracked(f"{world.client} {number}", f"{world.other} 53", f"{world.pod} 53") for number in range(1, 500)))
    assert sweep_once(sweeps(**{f"{world.vip} 53": ""})) == read.count == 0
    track(Tracked(f"{world.client} 999", f"{world.vip} 53", f"{world.pod} 53"))
    assert sweep_once(sweeps(**{f"{world.vip} 53": ""})) == 1
    assert 0 < read.count < 100


@pytest.mark.usefixtures("namespace")
def test_both_families_are_swept_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fronts of both families are looked for in the same answers, and counted by family."""
    asked = Calls(monkeypatch, "_message")
    wanted: Sweeps = {}
    for world in WORLDS:
        track(*set().union(*entries_of(world)))
        wanted |= sweeps(**{f"{world.vip} 53": f"{world.pod} 5353"})
    with closing(Sweeper(lambda _: None)) as sweeper:
        assert sweeper.sweep(wanted) == {IPV4: 3, IPV6: 3}
    assert asked.count == 1 + 6, "one question, and what is to be deleted"
    assert tracked() == set().union(*(entries_of(world)[0] for world in WORLDS))


@pytest.mark.usefixtures("namespace")
def test_the_thread_rests_after_each_answer() -> None:
    """However many entries there are, the sweeper rests after each few of them, some times as long as they took."""
    _fill(2000)
    rests: list[float] = []
    began = time.monotonic()
    with closing(Sweeper(rests.append)) as sweeper:
        sweeper.sweep(sweeps(**{FRONT: ""}))
    assert len(rests) >= 2000 // 100
    assert 0.5 * conntrack.REST < sum(rests) / (time.monotonic() - began) <= conntrack.REST


@pytest.mark.usefixtures("namespace")
def test_sockets_stay_open_until_something_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep after sweep uses the same sockets, since to close one delays transactions; after a failure, new ones."""
    opened = Calls(monkeypatch, "_socket")
    sweeper = Sweeper(lambda _: None)
    for _ in range(3):
        sweeper.sweep(sweeps(**{FRONT: ""}))
    assert opened.count == 2
    with monkeypatch.context() as patch:
        patch.setattr(conntrack, "DUMP_INTERRUPTED", 0xFFFF)
        with pytest.raises(Unavailable, match="changed"):
            sweeper.sweep(sweeps(**{FRONT: ""}))
    sweeper.sweep(sweeps(**{FRONT: ""}))
    sweeper.close()
    assert opened.count == 4


@pytest.mark.usefixtures("namespace")
@each_world
def test_several_addresses_with_one_port_are_told_apart(world: World) -> None:
    """Fronts that share a port keep their own endpoints."""
    first, second = f"{world.vip} 53", f"{world.other} 53"
    right = {
        Tracked(f"{world.client} 1", first, f"{world.pod} 53"),
        Tracked(f"{world.client} 2", second, f"{world.gone} 53"),
    }
    stale = {
        Tracked(f"{world.client} 3", first, f"{world.gone} 53"),
        Tracked(f"{world.client} 4", second, f"{world.pod} 53"),
    }
    track(*right, *stale)
    assert sweep_once(sweeps(**{first: f"{world.pod} 53", second: f"{world.gone} 53"})) == 2
    assert tracked() == right


@pytest.mark.usefixtures("namespace")
@each_world
def test_without_endpoints_what_was_translated_goes(world: World) -> None:
    """Where no endpoint is left flows that went to one go, and those that never did stay."""
    front = f"{world.vip} 53"
    untranslated = Tracked(f"{world.client} 1", front, front)
    track(untranslated, Tracked(f"{world.client} 2", front, f"{world.pod} 53"))
    assert sweep_once(sweeps(**{front: ""})) == 1
    assert tracked() == {untranslated}


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("zones", [(b"", b"\0\x09"), (b"\0\x09", b"")], ids=["replies", "originals"])
def test_a_zone_of_one_direction_is_a_zone(zones: tuple[bytes, bytes]) -> None:
    """An entry of which one direction only is tracked in another zone is not ours either."""
    client, front, gone = (conntrack._packed(*end(text)) for text in ("198.51.100.7 1", FRONT, "10.1.0.5 53"))
    with conntrack._socket() as kernel:
        kernel.send(_addition(client, front, gone, zones))
    assert len(tracked()) == 1
    assert sweep_once(sweeps(**{FRONT: ""})) == 0
    assert len(tracked()) == 1


@pytest.mark.usefixtures("namespace")
def test_an_entry_that_has_gone_or_changed_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has gone before it is deleted is not counted, nor is another flow that has its place now, which stays."""
    stale = [Tracked(f"198.51.100.7 {number}", "10.96.0.10 53", "10.1.0.5 53") for number in range(1, 4)]
    track(*stale)
    real = conntrack._delete

    def meanwhile(kernel: socket.socket, entry: Any) -> bool:
        if entry.tuple == entries[0]:
            assert real(kernel, entry)
        if entry.tuple == entries[1]:
            entry = entry._replace(id=b"\0\0\0\1")
        return real(kernel, entry)

    entries = sorted(_told_tuples())
    monkeypatch.setattr(conntrack, "_delete", meanwhile)
    assert sweep_once(sweeps(**{"10.96.0.10 53": ""})) == 1
    assert len(tracked()) == 1


def _told_tuples() -> Iterator[bytes]:
    with conntrack._socket() as kernel:
        fronts = {conntrack._packed(*end("10.96.0.10 53")): NO_ENDPOINTS}
        yield from (entry.tuple for entry in Sweeper(lambda _: None)._entries(kernel, fronts))


def test_a_user_without_rights_is_told(as_nobody: Run) -> None:
    """Without CAP_NET_ADMIN the error says so in the system's words."""
    told = as_nobody(
        "from nftproxy.conntrack import Sweeper\n"
        "from nftproxy.errors import Unavailable\n"
        "from nftproxy.flows import AddressPort\n"
        "try: Sweeper(print).sweep({AddressPort('10.96.0.10', 53): frozenset()})\n"
        "except Unavailable as error: print(error)\n"
    )
    assert told == "stale UDP flows can't be deleted from conntrack: Operation not permitted\n"


# ---- sweeps that follow each other ---------------------------------------------------------------------------------


class Slow:
    """Takes the place of `Sweeper.sweep`: each sweep waits for its leave, and is written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Sweeps] = []
        self.failures: list[Exception] = []
        self.begun, self.leave = threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr(Sweeper, "sweep", lambda _, sweeps: self._sweep(sweeps))
        monkeypatch.setattr(conntrack, "FIRST_PAUSE", 0.01)

    def _sweep(self, sweeps: Sweeps) -> Counter[Family]:
        self.asked.append(sweeps)
        self.begun.release()
        assert self.leave.acquire(timeout=10)
        if self.failures:
            raise self.failures.pop(0)
        return Counter({IPV4: 1})


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Sweeps that take as long as the test wants."""
    return Slow(monkeypatch)


def test_what_is_asked_for_during_a_sweep_follows_it_once(slow: Slow) -> None:
    """While one sweep runs, others are gathered into one, in which the latest endpoints of a front count."""
    first, stale, latest = (sweeps(**{FRONT: pod}) for pod in ("10.1.0.4 53", "10.1.0.5 53", "10.1.0.6 53"))
    other = sweeps(**{"10.96.0.11 53": ""})

    async def scenario() -> None:
        swept = Conntrack()
        running = asyncio.create_task(swept.sweep(first))
        await asyncio.to_thread(slow.begun.acquire)
        assert [await swept.sweep(each) for each in (stale, other, latest)] == [0, 0, 0]
        slow.leave.release(2)
        assert await running == 2
        assert slow.asked == [first, latest | other]
        swept.close()

    asyncio.run(scenario())


def test_a_failed_sweep_is_tried_again_with_what_came_since(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    """As long as the kernel fails, the fronts stay to be swept, those asked for meanwhile among them; it is logged."""
    first, latest, other = sweeps(**{FRONT: ""}), sweeps(**{FRONT: "10.1.0.4 53"}), sweeps(**{"10.96.0.11 53": ""})
    slow.failures = [Unavailable("no way"), Unavailable("not yet")]

    async def scenario() -> int:
        swept = Conntrack()
        running = asyncio.create_task(swept.sweep(first | other))
        await asyncio.to_thread(slow.begun.acquire)
        await swept.sweep(latest)
        slow.leave.release(3)
        return await running

    assert asyncio.run(scenario()) == 1
    assert slow.asked == [first | other, latest | other, latest | other]
    assert [record.getMessage() for record in caplog.records] == ["no way; trying again", "not yet; trying again"]


def test_each_family_is_measured(slow: Slow) -> None:
    """For each family that had fronts the observer gets the seconds and how many entries went."""
    seen: list[tuple[Family, float, int]] = []
    slow.leave.release(2)
    swept = Conntrack(lambda *observed: seen.append(observed))
    both = sweeps(**{FRONT: "", "fd00:96::10 53": ""})
    assert asyncio.run(swept.sweep(both)) == 1
    assert asyncio.run(swept.sweep(sweeps(**{FRONT: ""}))) == 1
    assert [(family, deleted) for family, _, deleted in seen] == [(IPV4, 1), (IPV6, 0), (IPV4, 1)]
    assert all(0 < seconds < 5 for _, seconds, _ in seen)


def test_a_sweep_needs_nobody_to_wait(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    """What is begun is tried again and again though nobody waits, and given up without a word when this is closed."""
    first, second = sweeps(**{FRONT: ""}), sweeps(**{"10.96.0.11 53": ""})
    slow.failures = [Unavailable("no way"), Unavailable("no way")]

    async def scenario() -> None:
        swept = Conntrack()
        swept.begin(first)
        await asyncio.to_thread(slow.begun.acquire)
        swept.begin(second)
        slow.leave.release()
        await asyncio.to_thread(slow.begun.acquire)
        threading.Timer(0.05, slow.leave.release).start()
        swept.close()
        await asyncio.sleep(0.1)

    asyncio.run(scenario())
    gc.collect()
    assert slow.asked == [first, first | second]
    assert caplog.messages == ["no way; trying again"]


def test_nothing_to_sweep_asks_nothing(slow: Slow) -> None:
    """Without fronts the kernel is left alone."""
    assert asyncio.run(Conntrack().sweep({})) == 0
    assert slow.asked == []


@pytest.mark.usefixtures("namespace")
def test_who_closes_does_not_wait_for_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that rests goes on to its end at once when it is closed."""
    monkeypatch.setattr(conntrack, "REST", 1e6)
    _fill(2000)

    async def scenario() -> float:
        swept = Conntrack()
        swept.begin(sweeps(**{FRONT: ""}))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        swept.close()
        return time.monotonic() - began

    assert asyncio.run(scenario()) < 5


def test_other_errors_end_the_sweep_and_not_the_sweeper(slow: Slow) -> None:
    """An error that isn't the kernel's is raised, and the next sweep works."""
    slow.failures = [ZeroDivisionError()]
    slow.leave.release(2)

    async def scenario() -> int:
        swept = Conntrack()
        with pytest.raises(ZeroDivisionError):
            await swept.sweep(sweeps(**{FRONT: ""}))
        return await swept.sweep(sweeps(**{FRONT: ""}))

    assert asyncio.run(scenario()) == 1


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("failure", ["interrupted", "no buffer", "silence"])
def test_what_the_kernel_could_not_tell_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    """A listing that was interrupted, got lost, or never came is repeated until one is whole."""
    track(*(Tracked(f"198.51.100.7 {number}", FRONT, "10.1.0.5 53") for number in range(1, 4)))
    real, calls = conntrack._messages, itertools.count()

    def failing(data: bytes) -> Iterator[tuple[int, int, bytes]]:
        if next(calls):
            yield from real(data)
        elif failure == "interrupted":
            yield nfnetlink.DONE, nfnetlink.DUMP_INTERRUPTED, bytes(4)
        elif failure == "no buffer":
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        else:
            raise TimeoutError("timed out")

    monkeypatch.setattr(conntrack, "_messages", failing)
    monkeypatch.setattr(conntrack, "FIRST_PAUSE", 0.01)
    with closing(Conntrack()) as swept:
        assert asyncio.run(swept.sweep(sweeps(**{FRONT: ""}))) == 3
    assert tracked() == set()


# ---- packets -------------------------------------------------------------------------------------------------------


def dns(ip: Ip, *, ports: str = "dns:53:30053/udp", vip: str = "", **tweaks: Any) -> Service:
    """A Service with a ClusterIP, a load balancer's address and a node port."""
    fields = {"type": "LoadBalancer", "load_balancer_ips": [ip.balanced], "ports": [ports]} | tweaks
    return service("kube/dns", cluster_ips=[vip or ip.vip], **fields)


def pods(ip: Ip, *addresses: str, port: int = 5353) -> EndpointSlice:
    """These pods, all elsewhere, as endpoints of `dns`."""
    texts = [f"{address}@node-b" for address in addresses]
    return slice_of("kube/dns", texts, ports=[f"dns:{port}/udp"], family=IPV6 if ip.is_ipv6 else IPV4)


def to(address: str, port: int = 5353) -> Outcome:
    """The outcome of a packet that reached a pod; whether its source was hidden is another matter."""
    return Outcome(UNTOUCHED.kind.ENDPOINT, (address, port))  # type: ignore[arg-type]  # equal to the lab's Address


class Client:
    """One that keeps its source port, and so its flow, while the cluster around it changes."""

    def __init__(self, cluster: Cluster, ip: Ip, address: str, port: int, *, sport: int = 5000, protocol: str = "udp"):
        self._cluster = cluster
        self._target = (Origin.OUTSIDE, address, port, protocol)
        self._flow = {"source": ip.client, "sport": sport}

    def send(self) -> Outcome:
        """What becomes of one more packet."""
        outcome = self._cluster.lab.connect(*self._target, **self._flow)  # type: ignore[arg-type]
        return to(*outcome.endpoint) if outcome.endpoint else outcome


def sweep(cluster: Cluster) -> int:
    """Sweep what is due, as the agent does after each transaction; the number of entries deleted."""
    swept = Conntrack()
    try:
        return cluster.lab.node.call(lambda: asyncio.run(swept.sweep(cluster.pipeline.flows.take())))
    finally:
        swept.close()


def fronts(ip: Ip) -> dict[str, tuple[str, int]]:
    """Every kind of address at which `dns` is reached."""
    return {"ClusterIP": (ip.vip, 53), "load balancer": (ip.balanced, 53), "node port": (ip.node, 30053)}


each_front = pytest.mark.parametrize("front", fronts(IP))


@in_a_lab
@each_ip
@each_front
def test_a_client_follows_its_service_through_nothing(lab: Lab, ip: Ip, front: str) -> None:
    """When the last endpoint goes the client is refused, and when another comes the client reaches that."""
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away))
    client = Client(cluster, ip, *fronts(ip)[front])
    sweep(cluster)
    assert client.send() == to(ip.away)
    cluster.put(pods(ip))
    assert client.send() == to(ip.away), "rules alone don't move a flow"
    assert sweep(cluster) == 1
    assert client.send() == PORT_UNREACHABLE
    cluster.put(pods(ip, ip.away2))
    sweep(cluster)
    assert client.send() == to(ip.away2)


@in_a_lab
@each_ip
@each_front
def test_only_the_clients_of_a_lost_endpoint_move(lab: Lab, ip: Ip, front: str) -> None:
    """When one of two endpoints goes, its clients go to the other, and the other's clients stay where they are."""
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away, ip.away2))
    clients = [Client(cluster, ip, *fronts(ip)[front], sport=sport) for sport in range(5000, 5020)]
    sweep(cluster)
    lost = sum(client.send() == to(ip.away) for client in clients)
    assert 0 < lost < 20, "chance, once in half a million"
    cluster.put(pods(ip, ip.away2, "fd00:1:0:3::4" if ip.is_ipv6 else "10.1.3.4"))
    assert sweep(cluster) == lost
    assert sweep(cluster) == 0
    cluster.put(pods(ip, ip.away2))
    sweep(cluster)
    assert {client.send() for client in clients} == {to(ip.away2)}


@in_a_lab
@each_ip
@each_front
def test_a_changed_target_port_moves_the_client(lab: Lab, ip: Ip, front: str) -> None:
    """A pod that serves at another port now gets its clients there."""
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away))
    client = Client(cluster, ip, *fronts(ip)[front])
    sweep(cluster)
    assert client.send() == to(ip.away)
    cluster.put(pods(ip, ip.away, port=5354))
    assert sweep(cluster) == 1
    assert client.send() == to(ip.away, 5354)


@in_a_lab
@each_ip
def test_a_client_with_a_changed_address_is_let_go(lab: Lab, ip: Ip) -> None:
    """The flow to an address or node port that a Service has given up ends, and one to its new address begins."""
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away))
    sweep(cluster)
    old = [Client(cluster, ip, *front) for front in ((ip.vip, 53), (ip.node, 30053))]
    new = [Client(cluster, ip, *front, sport=5001) for front in ((ip.vip2, 53), (ip.node, 30054))]
    assert [client.send() for client in old] == [to(ip.away)] * 2
    assert to(ip.away) not in [client.send() for client in new]
    cluster.put(dns(ip, vip=ip.vip2, ports="dns:53:30054/udp"))
    assert sweep(cluster) == 4, "two that were translated, two that were not"
    assert to(ip.away) not in [client.send() for client in old]
    assert [client.send() for client in new] == [to(ip.away)] * 2


@in_a_lab
@each_ip
@each_front
def test_a_client_that_came_first_gets_its_service(lab: Lab, ip: Ip, front: str) -> None:
    """A flow that was made before the Service existed, and so went elsewhere, goes to the Service's first endpoint."""
    cluster = Cluster(lab)
    client = Client(cluster, ip, *fronts(ip)[front])
    sweep(cluster)
    assert client.send() != to(ip.away)
    cluster.put(dns(ip))
    assert sweep(cluster) == 0
    assert client.send() == PORT_UNREACHABLE
    cluster.put(pods(ip, ip.away))
    assert sweep(cluster) == 1
    assert client.send() == to(ip.away)


@in_a_lab
@each_ip
@each_front
def test_a_removed_service_lets_its_clients_go(lab: Lab, ip: Ip, front: str) -> None:
    """No packet is translated for a Service that is no more."""
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away))
    client = Client(cluster, ip, *fronts(ip)[front])
    sweep(cluster)
    assert client.send() == to(ip.away)
    cluster.follow(Removed(Service, dns(ip).key))
    assert sweep(cluster) == 1
    assert client.send() != to(ip.away)


@in_a_lab
@each_ip
def test_a_restart_ends_stale_flows_only(lab: Lab, ip: Ip) -> None:
    """At the start those flows go whose endpoints went meanwhile, of Services without any too; all others stay."""
    before = Cluster(lab, dns(ip), pods(ip, ip.away, ip.away2), *other_service(ip, ip.here))
    clients = [Client(before, ip, ip.vip, 53, sport=sport) for sport in range(5000, 5020)]
    other = Client(before, ip, ip.vip2, 514)
    sent = [client.send() for client in clients]
    assert other.send() == to(ip.here, 514)
    lab.load("flush ruleset\n")
    after = Cluster(lab, dns(ip), pods(ip, ip.away2), *other_service(ip))
    assert sweep(after) == sent.count(to(ip.away)) + 1
    assert {client.send() for client in clients} == {to(ip.away2)}
    assert other.send() == PORT_UNREACHABLE


def other_service(ip: Ip, *addresses: str) -> tuple[Service, EndpointSlice]:
    """Another Service and its pods."""
    name, family = "kube/log", IPV6 if ip.is_ipv6 else IPV4
    made = service(name, cluster_ips=[ip.vip2], ports=["log:514/udp"])
    return made, slice_of(name, addresses, ports=["log:514/udp"], family=family)


@in_a_lab
@each_ip
@pytest.mark.parametrize("protocol", ["tcp", "sctp"])
def test_other_protocols_keep_their_flows(lab: Lab, ip: Ip, protocol: str) -> None:
    """A TCP or SCTP connection to a pod that is gone is left to its own end, beside a UDP flow that isn't."""
    ports = ["dns:53/udp", f"other:53/{protocol}"]
    both = service("kube/dns", cluster_ips=[ip.vip], ports=ports)
    family = IPV6 if ip.is_ipv6 else IPV4
    many = slice_of("kube/dns", [ip.away], ports=["dns:5353/udp", f"other:5353/{protocol}"], family=family)
    cluster = Cluster(lab, both, many)
    clients = [Client(cluster, ip, ip.vip, 53, protocol=each) for each in ("udp", protocol)]
    sweep(cluster)
    assert [client.send() for client in clients] == [to(ip.away)] * 2
    cluster.follow(Removed(EndpointSlice, many.key))
    assert sweep(cluster) == 1
    assert [client.send() for client in clients] == [PORT_UNREACHABLE, to(ip.away)]


@in_a_lab
@each_ip
def test_a_draining_pod_keeps_its_clients(lab: Lab, ip: Ip) -> None:
    """A pod that serves while it terminates keeps its clients, though new ones go elsewhere, until it is done."""
    family = IPV6 if ip.is_ipv6 else IPV4
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away))
    old, new = (Client(cluster, ip, ip.vip, 53, sport=sport) for sport in (5000, 5001))
    sweep(cluster)
    assert old.send() == to(ip.away)
    draining = slice_of("kube/dns", [f"{ip.away} draining", ip.away2], ports=["dns:5353/udp"], family=family)
    cluster.put(draining)
    assert sweep(cluster) == 0
    assert (old.send(), new.send()) == (to(ip.away), to(ip.away2))
    cluster.put(pods(ip, ip.away2))
    assert cluster.pipeline.apply([]).text == ""
    assert sweep(cluster) == 1
    assert old.send() == to(ip.away2)


@in_a_lab
def test_a_real_client_follows_real_pods() -> None:
    """A socket that stays open reaches one pod after the other, through a Service that for a moment has none."""
    with RealNetwork() as network:
        node, client = network.node(), network.host("client", "198.51.100.7", "2001:db8:100::7")
        for name, number in (("first", 4), ("second", 5)):
            node.pod(name, f"10.1.0.{number}", f"fd00:1::{number}").serve(5353, "udp")
        made = pipeline(dns(IP), slice_of("kube/dns", ["10.1.0.4@node-a"], ports=["dns:5353/udp"]))
        node.load(made.full_transaction({}).text)
        swept = Conntrack()

        def follow(*endpoints: str) -> None:
            moved = slice_of("kube/dns", endpoints, ports=["dns:5353/udp"])
            node.load(made.apply([Put(moved)]).text)
            node.node.call(lambda: asyncio.run(swept.sweep(made.flows.take())))

        with client.talk(IP.balanced, 53, "udp", sport=5000) as conversation:
            follow("10.1.0.4@node-a")
            assert conversation.ask().name == "first"
            follow()
            with pytest.raises(ConnectionRefusedError):
                conversation.ask()
            follow("10.1.0.5@node-a")
            assert conversation.ask().name == "second"
        swept.close()


# ---- many entries --------------------------------------------------------------------------------------------------

CHANGES, TURNS, ROUNDS = 100, 5, 8
"""How many changes are measured in one turn; how many turns a round has with sweeps, and without; how many rounds there
are at the most, until the machine does nothing else for once."""

each_crowd = pytest.mark.parametrize(
    "crowd",
    [
        pytest.param(50_000, id="short"),
        pytest.param(
            1_000_000,
            id="a million",
            marks=[
                pytest.mark.skipif(os.environ.get("NFTPROXY_TESTS") != "long", reason="NFTPROXY_TESTS=long"),
                pytest.mark.timeout(600),
            ],
        ),
    ],
    indirect=True,
)


@pytest.fixture
def crowd(request: pytest.FixtureRequest, namespace: None) -> Iterator[None]:  # noqa: ARG001 -- where they are
    """So many entries of others, some here and some elsewhere, all of which stay.

    The machine's limit is for each network namespace, and the kernel goes through the entries of all: as many
    namespaces are filled as it takes, this one the last.
    """
    total, limit = request.param, int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text()) - 1000
    here = min(total // 2, limit)
    elsewhere = [min(limit, total - here - first) for first in range(0, total - here, limit)]
    threads = [_filled(count) for count in elsewhere]
    _fill(here)
    yield
    assert _entry_count() == here
    assert [thread.submit(_entry_count).result() for thread in threads] == elsewhere
    for thread in threads:
        thread.shutdown()


@each_crowd
@pytest.mark.usefixtures("crowd")
def test_a_sweep_among_many_takes_no_memory() -> None:
    """Among a million entries of others a sweep takes no more memory than among none, and only what is stale goes."""
    track(Tracked("198.51.100.7 1", FRONT, "10.1.0.5 53"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for ports in (1, 9):
        wanted = {AddressPort(Address("10.96.0.10"), port): NO_ENDPOINTS for port in range(53, 53 + ports)}
        began, worked = time.monotonic(), time.thread_time()
        with closing(Sweeper(time.sleep)) as sweeper:
            assert sweeper.sweep(wanted).total() == (ports == 1)
        wall, cpu = time.monotonic() - began, time.thread_time() - worked
        print(f"{ports} fronts, {_entry_count():,} entries here: {wall:.2f} s, {cpu:.2f} s of CPU")  # noqa: T201
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{grown} KiB more memory")  # noqa: T201 -- figures
    assert grown < 4096


@each_crowd
@pytest.mark.usefixtures("crowd")
def test_sweeps_delay_no_change() -> None:
    """While one sweep follows the other, the slowest of a hundred changes takes less than twice what it does without.

    Turns with and without sweeps alternate, so that what else the machine does counts in both.
    """
    kernel = Kernel()
    kernel.apply(Transaction(f"table {IPV4.table} {{\n  set s {{\n    type inet_service\n  }}\n}}\n"))
    figures = []
    with _sweeping() as sweeping:
        for _ in range(ROUNDS):
            alone, beside = _measured(kernel, sweeping)
            figures.append(f"p99 {alone:.2f} ms alone, {beside:.2f} ms beside sweeps")
            if beside < 2 * alone:
                break
        assert sweeping.answers > 10 * TURNS
    print("; ".join(figures))  # noqa: T201
    assert beside < 2 * alone, figures


def _measured(kernel: Kernel, sweeping: _Sweeping) -> tuple[float, float]:
    """The 99th percentile of how long changes take without sweeps, and with sweeps, in milliseconds."""
    alone, beside = list[float](), list[float]()
    for _ in range(TURNS):
        alone += _changes(kernel)
        sweeping.goes_on.set()
        beside += _changes(kernel)
        sweeping.goes_on.clear()
    return _percentile(alone, 99), _percentile(beside, 99)


def _changes(kernel: Kernel) -> list[float]:
    """Make some changes; how long each took, in milliseconds."""
    taken = []
    for verb in itertools.islice(itertools.cycle(["add", "delete"]), CHANGES):
        transaction = Transaction(f"{verb} element {IPV4.table} s {{ 80 }}\n")
        began = time.perf_counter()
        kernel.apply(transaction)
        taken.append(1000 * (time.perf_counter() - began))
        time.sleep(0.001)
    return taken


def _percentile(values: list[float], rank: int) -> float:
    return sorted(values)[len(values) * rank // 100]


class _Sweeping:
    """Sweeps over and over, as while endpoints keep changing, as long as `goes_on` is set; counts answers."""

    def __init__(self) -> None:
        self.goes_on, self.is_over = threading.Event(), threading.Event()
        self.answers = 0

    def run(self) -> None:
        """Sweep until it is over."""
        with closing(Sweeper(self._rest)) as sweeper:
            while not self.is_over.is_set():
                self.goes_on.wait()
                sweeper.sweep(sweeps(**{FRONT: "", "10.96.0.11 53": "10.1.0.4 53"}))

    def _rest(self, seconds: float) -> None:
        self.is_over.wait(seconds)
        self.goes_on.wait()
        self.answers += 1


@contextmanager
def _sweeping() -> Iterator[_Sweeping]:
    sweeping = _Sweeping()
    thread = threading.Thread(target=sweeping.run)
    thread.start()
    try:
        yield sweeping
    finally:
        sweeping.is_over.set()
        sweeping.goes_on.set()
        thread.join()


def _entry_count() -> int:
    return int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())


def _filled(count: int) -> ThreadPoolExecutor:
    """A network namespace, held by a thread, with so many entries."""
    thread = ThreadPoolExecutor(max_workers=1)
    assert thread.submit(ctypes.CDLL(None).unshare, CLONE_NEWNET).result() == 0
    thread.submit(_fill, count).result()
    return thread


def _fill(count: int) -> None:
    """Have conntrack hold so many UDP entries to another address, a hundred for each message to the kernel."""
    server, numbers = conntrack._packed(*end("172.16.0.1 9999")), iter(range(count))
    with conntrack._socket() as kernel:
        while some := list(itertools.islice(numbers, 100)):
            clients = (struct.pack("!IH", 0x0A000000 + number, 1000 + number % 60000) for number in some)
            kernel.send(b"".join(_addition(client, server, server) for client in clients))


def _addition(client: bytes, front: bytes, endpoint: bytes, zones: tuple[bytes, bytes] = (b"", b"")) -> bytes:
    """A request to hold one more UDP entry, each direction of which may have a zone of its own."""
    attribute = conntrack._attribute

    def flow(kind: int, source: bytes, destination: bytes, zone: bytes) -> bytes:
        addresses = attribute(1, source[:-2]) + attribute(2, destination[:-2])
        protocol = attribute(1, conntrack.UDP) + attribute(2, source[-2:]) + attribute(3, destination[-2:])
        parts = attribute(1 | conntrack.NESTED, addresses) + attribute(2 | conntrack.NESTED, protocol)
        return attribute(kind | conntrack.NESTED, parts + (attribute(conntrack.TUPLE_ZONE, zone) if zone else b""))

    both = flow(1, client, front, zones[0]) + flow(2, endpoint, client, zones[1])
    timeout, status = attribute(7, struct.pack("!I", 600)), attribute(3, struct.pack("!I", 0xA))  # confirmed, seen
    return conntrack._message(
        0, 0x600, socket.AF_INET, both + timeout + status
    )  # IPCTNL_MSG_CT_NEW, created and only so
