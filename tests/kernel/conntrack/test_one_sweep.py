"""A single sweep deletes stale UDP flows, and nothing else."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from nftproxy.kernel.conntrack import sweeps as conntrack
from nftproxy.kernel.conntrack.sweeps import Sweeper
from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import codec
from nftproxy.policy.flows import NO_ENDPOINTS, Kept, Sweeps, Unanswered
from tests.conftest import Run
from tests.kernel.conntrack.entries import FRONT, Tracked, addition, end, fill, sweeps, track, tracked
from tests.support.factories import IPV4, IPV6

pytestmark = pytest.mark.usefixtures("namespace")


def sweep_once(wanted: Sweeps) -> int:
    """Sweep these fronts without resting, and return the number of deleted entries."""
    with closing(Sweeper(lambda _: None)) as sweeper:
        return sweeper.sweep(wanted).total()


class World(NamedTuple):
    """Addresses of a family, for entries that no packet made."""

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
    """Right or foreign entries, and stale entries, where `pod` is the only endpoint of `vip` and `port`."""
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


@each_world
@pytest.mark.parametrize("fronts", [1, 2, 9], ids=["one front", "several ports", "many ports"])
def test_only_stale_udp_flows_of_zone_0_go(monkeypatch: pytest.MonkeyPatch, world: World, fronts: int) -> None:
    """UDP entries to a front, elsewhere than to its endpoints, and in no other zone, are deleted.

    No other deletion is even tried.
    """
    tried = Calls(monkeypatch, "delete_entry")
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


@each_world
def test_only_answers_with_an_address_of_ours_are_read(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Answers of the kernel without any front's address are skipped as a whole."""
    read = Calls(monkeypatch, "_entry")
    track(*(Tracked(f"{world.client} {number}", f"{world.other} 53", f"{world.pod} 53") for number in range(1, 500)))
    assert sweep_once(sweeps(**{f"{world.vip} 53": ""})) == read.count == 0
    track(Tracked(f"{world.client} 999", f"{world.vip} 53", f"{world.pod} 53"))
    assert sweep_once(sweeps(**{f"{world.vip} 53": ""})) == 1
    assert 0 < read.count < 100


@each_world
def test_tcp_connections_to_addresses_that_are_not_kept_go(world: World) -> None:
    """A sweep of a TCP front deletes each entry whose endpoint has no kept address, whatever its port."""
    front = f"{world.vip} 53"
    right = {
        Tracked(f"{world.client} 1", front, f"{world.pod} 5354", socket.IPPROTO_TCP),
        Tracked(f"{world.client} 2", front, front, socket.IPPROTO_TCP),
        Tracked(f"{world.client} 3", front, f"{world.gone} 5353", socket.IPPROTO_TCP, zone=7),
        Tracked(f"{world.client} 4", front, f"{world.gone} 5353"),
        Tracked(f"{world.client} 5", f"{world.other} 53", f"{world.gone} 5353", socket.IPPROTO_TCP),
        Tracked(f"{world.client} 6", f"{world.gone} 5353", f"{world.gone} 5353", socket.IPPROTO_TCP),
    }
    track(*right, Tracked(f"{world.client} 7", front, f"{world.gone} 5353", socket.IPPROTO_TCP))
    kept = {Address(world.pod)}
    assert sweep_once({end(front)._replace(protocol=Protocol.TCP): kept}) == 1
    assert tracked() == right


@each_world
def test_associations_are_swept_by_their_protocol(world: World) -> None:
    """A sweep of an SCTP front deletes associations to lost endpoints, and flows of other protocols stay."""
    front = f"{world.vip} 53"
    right = {
        Tracked(f"{world.client} 1", front, f"{world.pod} 53", socket.IPPROTO_SCTP),
        Tracked(f"{world.client} 2", front, f"{world.gone} 53"),
        Tracked(f"{world.client} 3", front, f"{world.gone} 53", socket.IPPROTO_TCP),
    }
    track(*right, Tracked(f"{world.client} 4", front, f"{world.gone} 53", socket.IPPROTO_SCTP))
    pods = frozenset({end(f"{world.pod} 53")._replace(protocol=Protocol.SCTP)})
    assert sweep_once({end(front)._replace(protocol=Protocol.SCTP): Kept(pods, pods)}) == 1
    assert tracked() == right


def test_masqueraded_flows_are_told_by_the_destination_of_their_replies() -> None:
    """A flow whose replies go to another address than its source is masqueraded, and may have fewer endpoints."""
    front, away = end(FRONT), end("10.1.1.4 53")
    client, node, pod, vip = (
        conntrack._packed(*end(each)) for each in ("198.51.100.7 1", "192.168.0.2 1", "10.1.1.4 53", FRONT)
    )
    plain = Tracked("198.51.100.8 1", FRONT, "10.1.1.4 53")
    track(plain)
    with open_socket() as kernel:
        kernel.send(addition(client, vip, pod, seen_client=node))
    assert len(tracked()) == 2
    for own, left in ((frozenset({Address("198.51.100.7")}), 2), (frozenset[Address](), 1)):
        sweep_once({front: Kept(frozenset({away}), frozenset(), own)})
        assert len(tracked()) == left
    assert tracked() == {plain}


@pytest.mark.parametrize("protocol", Protocol)
def test_flows_without_an_answer_are_swept_where_it_is_asked(protocol: Protocol) -> None:
    """A sweep for a front's unanswered flows deletes these, and no answered flow or other front's flow."""
    number = conntrack.NUMBERS[protocol]
    front, other, pod = ((conntrack._packed(*end(each))) for each in (FRONT, "10.96.0.11 53", "10.1.0.4 53"))
    clients = [conntrack._packed(*end(f"198.51.100.7 {port}")) for port in range(1, 4)]
    with open_socket() as kernel:
        for client, asked, is_answered in zip(clients, (front, front, other), (False, True, False), strict=True):
            kernel.send(addition(client, asked, pod, protocol=number, is_answered=is_answered))
    assert len(tracked()) == 3
    assert sweep_once({Unanswered(end(FRONT)._replace(protocol=protocol)): NO_ENDPOINTS}) == 1
    assert {each.source for each in tracked()} == {"198.51.100.7 2", "198.51.100.7 3"}


def test_an_address_that_comes_back_during_a_sweep_is_spared() -> None:
    """The kept addresses may change while the kernel lists its entries, and count as they are then."""
    fill(1000)
    track(Tracked("198.51.100.7 1", FRONT, "10.1.0.5 53", socket.IPPROTO_TCP))
    kept = set[Address]()
    with closing(Sweeper(lambda _: kept.add(Address("10.1.0.5")))) as sweeper:
        sweeper.sweep({end("10.96.9.9 53")._replace(protocol=Protocol.TCP): kept})
        assert sweeper.sweep({end(FRONT)._replace(protocol=Protocol.TCP): kept}).total() == 0


def test_both_families_are_swept_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fronts of both families are looked for in the same answers, and counted by family."""
    asked = Calls(monkeypatch, "request")
    wanted: Sweeps = {}
    for world in WORLDS:
        track(*set().union(*entries_of(world)))
        wanted |= sweeps(**{f"{world.vip} 53": f"{world.pod} 5353"})
    with closing(Sweeper(lambda _: None)) as sweeper:
        assert sweeper.sweep(wanted) == {(family, False): 3 for family in Family}
    assert asked.count == 1 + 6, "one question, and what is to be deleted"
    assert tracked() == set().union(*(entries_of(world)[0] for world in WORLDS))


def test_the_thread_rests_after_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many entries there are, the sweeper rests after each few of them, some times as long as they took."""
    fill(2000)
    clock = itertools.accumulate(itertools.count())  # the first answer takes 1 second, the next 3, 5, ...
    monkeypatch.setattr(conntrack, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    rests: list[float] = []
    with closing(Sweeper(rests.append)) as sweeper:
        sweeper.sweep(sweeps(**{FRONT: ""}))
    assert len(rests) >= 2000 // 100
    assert rests == [conntrack.REST * (1 + 2 * number) for number in range(len(rests))]


def test_sockets_stay_open_until_something_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sweeps use the same sockets, since closing a socket delays transactions.  After a failure there are new
    sockets.
    """
    opened = Calls(monkeypatch, "open_socket")
    sweeper = Sweeper(lambda _: None)
    for _ in range(3):
        sweeper.sweep(sweeps(**{FRONT: ""}))
    assert opened.count == 2
    with monkeypatch.context() as patch:
        patch.setattr(codec, "DUMP_INTERRUPTED", 0xFFFF)
        with pytest.raises(Unavailable, match="changed"):
            sweeper.sweep(sweeps(**{FRONT: ""}))
    sweeper.sweep(sweeps(**{FRONT: ""}))
    sweeper.close()
    assert opened.count == 4


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


@each_world
def test_without_endpoints_translated_flows_are_deleted(world: World) -> None:
    """Without endpoints, flows that were translated are deleted, and other flows stay."""
    front = f"{world.vip} 53"
    untranslated = Tracked(f"{world.client} 1", front, front)
    track(untranslated, Tracked(f"{world.client} 2", front, f"{world.pod} 53"))
    assert sweep_once(sweeps(**{front: ""})) == 1
    assert tracked() == {untranslated}


@pytest.mark.parametrize("zones", [(b"", b"\0\x09"), (b"\0\x09", b"")], ids=["replies", "originals"])
def test_a_zone_of_one_direction_is_a_zone(zones: tuple[bytes, bytes]) -> None:
    """An entry with a single direction in another zone is foreign too."""
    client, front, gone = (conntrack._packed(*end(text)) for text in ("198.51.100.7 1", FRONT, "10.1.0.5 53"))
    with open_socket() as kernel:
        kernel.send(addition(client, front, gone, zones))
    assert len(tracked()) == 1
    assert sweep_once(sweeps(**{FRONT: ""})) == 0
    assert len(tracked()) == 1


def test_an_entry_that_has_gone_or_changed_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that is gone before its deletion isn't counted.  A new flow in its place isn't either, and stays."""
    stale = [Tracked(f"198.51.100.7 {number}", "10.96.0.10 53", "10.1.0.5 53") for number in range(1, 4)]
    track(*stale)
    real = conntrack.delete_entry

    def meanwhile(kernel: socket.socket, family: Family, original: bytes, identifier: bytes) -> bool:
        if original == entries[0]:
            assert real(kernel, family, original, identifier)
        if original == entries[1]:
            identifier = b"\0\0\0\1"
        return real(kernel, family, original, identifier)

    entries = sorted(_told_tuples())
    monkeypatch.setattr(conntrack, "delete_entry", meanwhile)
    assert sweep_once(sweeps(**{"10.96.0.10 53": ""})) == 1
    assert len(tracked()) == 1


def _told_tuples() -> Iterator[bytes]:
    with open_socket() as kernel:
        fronts = {conntrack._packed(*end("10.96.0.10 53")): NO_ENDPOINTS}
        yield from (entry.tuple for entry in Sweeper(lambda _: None)._entries(kernel, fronts))


def test_a_user_without_rights_is_told(as_nobody: Run) -> None:
    """Without CAP_NET_ADMIN the error says so in the system's words."""
    told = as_nobody(
        "from nftproxy.kernel.conntrack.sweeps import Sweeper\n"
        "from nftproxy.model.errors import Unavailable\n"
        "from nftproxy.policy.flows import AddressPort\n"
        "try: Sweeper(print).sweep({AddressPort('10.96.0.10', 53): frozenset()})\n"
        "except Unavailable as error: print(error)\n"
    )
    assert told == "stale entries can't be deleted from conntrack: Operation not permitted\n"
