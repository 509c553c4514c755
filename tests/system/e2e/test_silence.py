"""Silent endpoints are left out: real nodes that die without closing connections, real clients, a real agent."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator

import pytest
from nftproxy_conformance.lab import RealHost, obstacle

from nftproxy.extensions.failover.silence import BACKOFF
from tests.support import objects
from tests.support.cluster import IP, IP6, Ip
from tests.support.waiting import PATIENCE, wait_until
from tests.system.e2e import silent_town
from tests.system.e2e.agent import eventually
from tests.system.e2e.silent_town import NEEDED, PLAIN, SILENT, Connections, Town, failover, put_service

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]


@pytest.fixture(scope="module")
def shared_town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """Three nodes, and two Services with the same two pods."""
    with silent_town.town(tmp_path_factory.mktemp("node-a")) as made:
        yield made


@pytest.fixture
def town(shared_town: Town) -> Iterator[Town]:
    """The town.  At the end no node is dead or loses packets, and Services of the test are gone."""
    yield shared_town
    for ip in (IP, IP6):
        shared_town.network.route(shared_town.ranges(ip), shared_town.nodes[1])
        shared_town.network.route(shared_town.other_ranges(ip), shared_town.nodes[2])
        shared_town.nodes[1].load(f"table {ip.nft} lossy\ndelete table {ip.nft} lossy")
    for name in ("late", "flap", "roll"):
        if shared_town.server.get("Service", objects.NAMESPACE, name):
            shared_town.remove_service(name)


def test_node_that_dies_is_left_out(town: Town, ip: Ip) -> None:
    """A dead node's pod is left out, its clients reach another pod, and it serves again once it answers."""
    before, reported = town.metric("nftproxy_silences_total"), town.silences("web")
    town.network.lose(town.ranges(ip))
    web, plain = Connections(town.client, ip.vip), Connections(town.client, PLAIN[ip])
    with contextlib.closing(web), contextlib.closing(plain):
        for _ in range(12):
            for each in (web, plain):
                each.begin(4)
                each.wait(0.1)
        eventually(town.status, [town.place(ip)])
        assert web.wait(PATIENCE) == 0
        assert plain.wait(0.01) > 0
    assert town.answering(ip.vip) == {"web-c"}
    assert SILENT in town.explain(ip.vip)
    assert SILENT not in town.explain(PLAIN[ip])
    assert town.metric("nftproxy_silences_total") == before + 1
    assert town.metric("nftproxy_connections_moved_total") > 0
    eventually(lambda: (town.silences("web"), town.silences("other")), (reported + 1, 0))
    town.network.route(town.ranges(ip), town.nodes[1])
    eventually(town.status, [])
    eventually(functools.partial(town.answering, ip.vip), {"web-b", "web-c"})


VIPS = ("10.96.0.30", "fd00:96::30")
"""The addresses of the Services "late" and "flap", which exist during a single test each."""
FLAPS = 10
"""How often a pod returns and dies again while it is left out already."""
DELAY = 0.5
"""Seconds that the slow pod takes to answer.  Clients retransmit after 1 s, and a loaded machine adds to the delay."""

LOSSY = """
table {ip} lossy {{
  set seen {{
    typeof {ip} saddr . tcp sport
    flags dynamic
    size 65535
  }}
  chain forward {{
    type filter hook forward priority -300
    tcp dport != 8080 accept
    tcp flags & (syn | ack) != syn accept
    {ip} saddr . tcp sport @seen accept
    add @seen {{ {ip} saddr . tcp sport }} drop
  }}
}}
"""


def test_pod_that_loses_packets_stays(town: Town, ip: Ip) -> None:
    """A pod stays if the first packet of every connection is lost, so that each is answered a second late."""
    before = town.metric("nftproxy_silences_total")
    family = "ip6" if ip is IP6 else "ip"
    town.nodes[1].load(LOSSY.format(ip=family))
    with contextlib.closing(Connections(town.client, ip.vip)) as web:
        for _ in range(15):
            web.begin(4)
            web.wait(0.15)
        assert web.wait(PATIENCE) == 0
        assert len([seconds for seconds in web.took if seconds > 0.9]) >= 6
    town.nodes[1].load(f"delete table {family} lossy")
    assert (town.metric("nftproxy_silences_total"), town.status()) == (before, [])


def test_slow_pod_stays_beside_a_dead_one(town: Town) -> None:
    """A pod that answers each connection after 0.5 s is never left out, while a dead pod is left out at once."""
    slow = town.nodes[2].pod("slow", "10.1.2.8", "fd00:1:0:2::8", delay=DELAY)
    slow.serve(8080)
    dead = {"10.1.1.8", "fd00:1:0:1::8"}
    town.network.lose(*dead)
    pods = [town.pods["web-b"], town.pods["web-c"], slow]  # with the dead pod four, of which two might be left out
    ends = [f"{each}@node-b" for each in dead]
    ends += [f"{each}@node-{pod.name[-1]}" for pod in pods for each in (pod.address, pod.address6)]
    put_service(town.server, "late", VIPS, ends)
    everyone = {end.partition("@")[0] for end in ends}
    eventually(lambda: set(town.shares("late")), everyone)
    before = town.metric("nftproxy_silences_total")
    with contextlib.ExitStack() as stack:
        first, then = (
            [stack.enter_context(contextlib.closing(Connections(town.client, vip))) for vip in VIPS] for _ in range(2)
        )
        keep_on_until(town, first, before + 2)
        for _ in range(10):
            keep_on(then)
        assert [each.wait(PATIENCE) for each in [*first, *then]] == [0, 0, 0, 0]
    for each in then:
        assert len([seconds for seconds in each.took if seconds >= DELAY]) >= len(each.took) / 8
    assert set(town.shares("late")) == everyone - dead
    assert town.metric("nftproxy_silences_total") == before + 2
    assert {place.rpartition(":")[0].strip("[]") for place in town.status()} == dead
    town.remove_service("late")
    eventually(town.status, [])
    slow.close()


def test_flapping_is_damped(town: Town) -> None:
    """However often a pod flaps, rules change only when it falls silent or answers a retry, after growing pauses."""
    pod = town.nodes[1].pod("flap", "10.1.1.9", "fd00:1:0:1::9")
    pod.serve(8080)
    ends = [f"{each.address}@node-b {each.address6}@node-b" for each in (pod, town.pods["web-b"])]
    put_service(town.server, "flap", VIPS, " ".join(ends).split())
    eventually(lambda: len(town.shares("flap")), 4)
    changes, fallen, flaps = town.metric("nftproxy_transactions_total"), town.metric("nftproxy_silences_total"), 0
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(Connections(town.client, vip))) for vip in VIPS]
        for _ in range(2):
            town.network.lose(pod.address, pod.address6)
            fallen += 2
            keep_on_until(town, clients, fallen)
            flaps += flap(town, pod)
            eventually(functools.partial(town.metric, "nftproxy_silent_endpoints"), 0)
        assert [each.wait(PATIENCE) for each in clients] == [0, 0]
    for place in (f"{pod.address}:8080", f"[{pod.address6}]:8080"):
        first, second = town.pauses(place)
        assert (first > 0.75 * BACKOFF.first, second > 0.75 * 2 * BACKOFF.first) == (True, True), (first, second)
    assert town.metric("nftproxy_silences_total") == fallen
    assert town.metric("nftproxy_transactions_total") - changes <= 8 < flaps / 4
    town.remove_service("flap")
    pod.close()


def flap(town: Town, pod: RealHost) -> int:
    """Let a lost pod of node-b return and die many times, and return at the end.  Return its flaps in both families."""
    for _ in range(FLAPS):
        town.network.route(pod.address, town.nodes[1])
        town.network.route(pod.address6, town.nodes[1])
        town.network.lose(pod.address, pod.address6)
    town.network.route(pod.address, town.nodes[1])
    town.network.route(pod.address6, town.nodes[1])
    return 2 * (1 + FLAPS)


def keep_on_until(town: Town, clients: Iterable[Connections], silences: float) -> None:
    """Let clients begin connections until the metric has counted so many silences."""

    def look() -> bool:
        keep_on(clients)
        return town.metric("nftproxy_silences_total") >= silences

    wait_until(look, pause=0)


def keep_on(clients: Iterable[Connections]) -> None:
    """Begin some more connections."""
    for each in clients:
        each.begin(8)
    for each in clients:
        each.wait(0.1)


def test_last_endpoint_is_never_left_out(town: Town, ip: Ip) -> None:
    """If no endpoint answers, the list keeps half of its endpoints, and endpoints that return answer again."""
    town.network.lose(town.ranges(ip))
    town.network.lose(town.other_ranges(ip))
    with contextlib.closing(Connections(town.client, ip.vip)) as web:
        for _ in range(8):
            web.begin(6)
            web.wait(0.2)
        eventually(lambda: len(town.status()), 2)
        explained = town.explain(ip.vip)
        assert (SILENT in explained, NEEDED in explained) == (True, True)
        town.network.route(town.ranges(ip), town.nodes[1])
        town.network.route(town.other_ranges(ip), town.nodes[2])
        assert web.wait(PATIENCE) == 0
    eventually(town.status, [])


def test_refused_connections_fail_for_nobody(town: Town) -> None:
    """While a pod's port is closed and its slice still has it, every client reaches the other pod, as in a rollout."""
    pod = town.nodes[1].pod("roll", "10.1.1.7", "fd00:1:0:1::7")
    ends = [f"{each.address}@node-b {each.address6}@node-b" for each in (pod, town.pods["web-b"])]
    servers = pod.serve(8080)
    put_service(town.server, "roll", VIPS, " ".join(ends).split(), metadata=failover("refused"))
    eventually(lambda: len(town.shares("roll")), 4)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(Connections(town.client, vip))) for vip in VIPS]
        keep_on(clients)
        fallen = town.metric("nftproxy_silences_total")
        for server in servers:
            server.close()
        keep_on_until(town, clients, fallen + 2)
        keep_on(clients)
        assert [each.wait(PATIENCE) for each in clients] == [0, 0]
        assert sum(seconds > 0.5 for each in clients for seconds in each.took) > 0
        assert set(town.shares("roll")) == {town.pods["web-b"].address, town.pods["web-b"].address6}
        pod.serve(8080)
        eventually(lambda: len(town.shares("roll")), 4)
    town.remove_service("roll")
    pod.close()


def test_a_pod_that_refuses_one_client_stays(town: Town) -> None:
    """A client that a pod refuses, or that provokes refusals, goes elsewhere, and has no pod left out."""
    ends = [f"{each.address}@node-x {each.address6}@node-x" for each in town.pods.values()]
    put_service(town.server, "roll", VIPS, " ".join(ends).split(), metadata=failover("refused"))
    eventually(lambda: len(town.shares("roll")), 4)
    before, checks = town.metric("nftproxy_silences_total"), town.metric("nftproxy_silence_checks_total")
    pod = town.pods["web-b"].namespace
    rule = f"ip saddr {town.client.address} tcp flags syn reject with tcp reset"
    chain = "add chain inet t c { type filter hook input priority 0; }"
    pod.run(["nft", f"add table inet t; {chain}; add rule inet t c {rule}"])
    with contextlib.closing(Connections(town.client, VIPS[0])) as client:

        def provoke() -> bool:
            keep_on([client])
            return town.metric("nftproxy_silence_checks_total") > checks

        wait_until(provoke, pause=0)
        pod.run(["nft", "delete table inet t"])
        assert client.wait(PATIENCE) == 0
    assert (town.metric("nftproxy_silences_total"), town.status()) == (before, [])
    town.remove_service("roll")


def test_connections_to_a_pod_that_is_gone_end(town: Town, ip: Ip) -> None:
    """A client of a pod that vanishes without a word, and leaves the slices, is reset at its next packet."""
    pod = town.nodes[1].pod("vanishing", "10.1.1.9", "fd00:1:0:1::9")
    pod.serve(8080)
    vip, rest = VIPS[ip is IP6], f"{ip.of(town.pods['web-c'])}@node-c"
    put_service(town.server, "roll", VIPS, [f"{ip.of(pod)}@node-b"], metadata=failover("gone"))
    eventually(lambda: set(town.shares("roll")), {ip.of(pod)})
    ended = town.metric("nftproxy_connections_ended_total")
    with town.client.talk(vip, silent_town.PORT, timeout=PATIENCE) as lost:
        assert lost.ask().name == "vanishing"
        town.network.lose(ip.of(pod))
        put_service(town.server, "roll", VIPS, [rest], metadata=failover("gone"))
        wait_until(lambda: town.metric("nftproxy_connections_ended_total") > ended)
        with pytest.raises(ConnectionResetError):
            lost.ask()
    town.network.route(ip.of(pod), town.nodes[1])
    town.remove_service("roll")
    pod.close()
