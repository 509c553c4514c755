"""The watch for silent endpoints: when it reads the kernel, which endpoints it probes, and its reports."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Iterable, Mapping
from unittest.mock import AsyncMock

import pytest

from nftproxy.extensions.failover.agent import silence_watch
from nftproxy.extensions.failover.agent.silence_watch import (
    MOST_TRIED,
    RETRANSMISSION_WAIT,
    SilenceChange,
    SilenceWatch,
    answer_of,
)
from nftproxy.extensions.failover.agent.unanswered import (
    STUCK,
    UNANSWERED,
    Retransmission,
    UnansweredConnection,
    UnansweredReader,
)
from nftproxy.extensions.failover.silence import THRESHOLD, ProbeAnswer
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.extensions.failover.watched import silent_places, watched_places
from nftproxy.installed import INSTALLED
from nftproxy.model.addresses import Address, Family, family_of
from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import EndpointSlice, Place, Service
from nftproxy.policy.extension import Settings
from nftproxy.policy.numbers import namespace_number
from nftproxy.policy.state import ClusterState, Invalidation
from tests.support.factories import key, service, slice_of
from tests.support.metrics import all_metrics
from tests.support.processes import no_files_left
from tests.support.waiting import until

LEAVE_OUT = {"failover": "silent"}
ALL = {"failover": "silent, refused"}
DEAD = Place(Address("10.1.1.4"), 8080)
GONE = Place(Address("10.1.2.4"), 8080)
PORTS = ("http:8080",)


class FakeKernel(UnansweredReader):
    """Unanswered connections, and the queries about them."""

    def __init__(self) -> None:
        self.waiting: list[UnansweredConnection] = []
        self.looks = self.questions = 0
        self.forgotten: list[UnansweredConnection] = []
        self.fails = self.is_closed = False
        self.crowds: set[str] = set()
        self.refusing: list[Place] = []

    def wait_for(
        self,
        place: Place,
        count: int = THRESHOLD,
        waits: float = RETRANSMISSION_WAIT,
        *,
        more: bool = False,
        is_stuck: bool = False,
    ) -> None:
        """Let connections wait for an endpoint: instead of all waiting connections, or in addition to them (`more`)."""
        before = self.waiting if more else []
        keys = range(len(before), len(before) + count)
        noted = [Retransmission(Family.IPV4, number.to_bytes(2, "big"), waits, is_stuck) for number in keys]
        self.waiting = before + [UnansweredConnection(each, place, b"", each.key) for each in noted]

    def retransmissions(self, family: Family, name: str = UNANSWERED) -> list[Retransmission]:
        """As the kernel does."""
        self.looks += name == UNANSWERED
        if self.fails:
            raise Unavailable("no")
        noted = [each.retransmission for each in self.waiting if each.retransmission.is_stuck == (name == STUCK)]
        return [each for each in noted if each.family is family]

    def refused(self, family: Family) -> list[Place]:
        """As the kernel does."""
        return [place for place in self.refusing if family_of(place.address) is family]

    def crowded(self, family: Family) -> set[str]:
        """As the kernel does."""
        return {namespace_number(name, family) for name in self.crowds}

    def unanswered(self, retransmissions: Iterable[Retransmission]) -> list[UnansweredConnection]:
        """As the kernel does."""
        self.questions += 1
        asked = list(retransmissions)
        return [each for each in self.waiting if each.retransmission in asked]

    def delete(self, connections: Iterable[UnansweredConnection]) -> int:
        """Delete connections as the kernel does: their next packets go elsewhere."""
        gone = list(connections)
        self.forgotten += gone
        self.waiting = [each for each in self.waiting if each not in gone]
        return len(gone)

    def close(self) -> None:
        """As the kernel does."""
        self.is_closed = True


class Bench:
    """A watch over a cluster, with a kernel and endpoints that do as they are told to."""

    def __init__(self, state: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(silence_watch, "INTERVAL", 0.001)
        self.state, self.kernel = state, FakeKernel()
        self.changes: list[SilenceChange] = []
        self.tried: list[Place] = []
        self.answering: set[Place] = set()
        self.is_poor = False
        """Whether the node has no resources for probes."""
        self.metrics = all_metrics()
        self.faults: list[tuple[object, ...]] = []
        """The reports about readings that fail, and work again."""
        self.watch = SilenceWatch(
            state,
            Family,
            self.kernel,
            self.metrics,
            self.changes.append,
            self.connect,
            lambda *each: self.faults.append(each),
        )
        self._task: asyncio.Task[None] | None = None

    async def connect(self, place: Place, _patience: float) -> ProbeAnswer:
        """The answer of an endpoint."""
        self.tried.append(place)
        if self.is_poor:
            return ProbeAnswer.UNTRIED
        if place in self.kernel.refusing:
            return ProbeAnswer.REFUSED
        return ProbeAnswer.ACCEPTED if place in self.answering else ProbeAnswer.NONE

    async def __aenter__(self) -> Bench:
        self._task = asyncio.create_task(self._follow())
        self.watch.rules_loaded()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        """Apply changes as the loop does, and report that the kernel has the rules."""
        async for events in self.watch.events():
            for event in events:
                self.state.ingest(event)
            if events:
                self.watch.rules_loaded()


def cluster(*endpoints: str, annotations: Mapping[str, str] = LEAVE_OUT) -> ClusterState:
    """A Service with these endpoints."""
    state = ClusterState("node-a", extended=Settings(extensions=INSTALLED).extended())
    state.ingest(Put(service(annotations=annotations)))
    state.ingest(Put(slice_of(endpoints=endpoints or ("10.1.0.4", "10.1.1.4"), ports=PORTS)))
    return state


def test_nothing_is_asked_while_no_service_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch sends the kernel no query until a Service has the annotation."""

    async def main() -> None:
        async with Bench(cluster(annotations={}), monkeypatch) as bench:
            for _ in range(20):
                await asyncio.to_thread(int)  # a look would have had its thread before
            assert bench.kernel.looks == 0
            bench.state.ingest(Put(service(annotations=LEAVE_OUT)))
            bench.watch.rules_loaded()
            await until(lambda: bench.kernel.looks > 4)

    asyncio.run(main())


@pytest.mark.parametrize("count", [2, 5000])
def test_looks_cost_the_same_for_any_number_of_endpoints(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """While all endpoints answer, a look is one query per family, with 2 endpoints or 5,000, and probes nothing."""
    monkeypatch.setattr(silence_watch, "watched_places", None)  # a pass over all endpoints would fail

    async def main() -> None:
        state = cluster(*(f"10.1.{number // 250}.{number % 250 + 1}" for number in range(count)))
        async with Bench(state, monkeypatch) as bench:
            await until(lambda: bench.kernel.looks >= 20)
            assert bench.kernel.looks % len(Family) == 0
            assert (bench.kernel.questions, bench.tried, silent_places(bench.state).places) == (0, [], ())

    asyncio.run(main())


def test_dead_endpoint_is_left_out_and_its_connections_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint with enough evidence against it is silent for the pipeline, reported, and loses its connections."""

    async def main() -> None:
        async with Bench(cluster(), monkeypatch) as bench:
            bench.kernel.wait_for(DEAD)
            await until(lambda: not bench.kernel.waiting)
            assert silent_places(bench.state).places == (DEAD,)
            assert bench.changes == [SilenceChange(DEAD, True, False, [key("shop/web")])]
            assert {each.place for each in bench.kernel.forgotten} == {DEAD}
            moved = f"nftproxy_connections_moved_total {float(THRESHOLD)}"
            await until(lambda: moved in bench.metrics.exposition().decode())
            bench.answering.add(DEAD)
            await until(lambda: not silent_places(bench.state).places)
            assert bench.changes[1:] == [
                SilenceChange(DEAD, is_silent=False, refuses=False, services=[key("shop/web")])
            ]
            assert 'nftproxy_silent_endpoints{ip_family="IPv4"} 0.0' in bench.metrics.exposition().decode()
        assert bench.kernel.is_closed

    asyncio.run(main())


def test_endpoint_that_refuses_clients_and_us_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that refuses is silent where Services ask for that, is reported, and returns once it accepts."""

    async def main() -> None:
        async with Bench(cluster(annotations={"failover": "refused"}), monkeypatch) as bench:
            bench.kernel.refusing = [DEAD, Place(Address("10.9.9.9"), 8080)]
            await until(lambda: bool(silent_places(bench.state).places))
            assert silent_places(bench.state).places == (*silent_places(bench.state).refusing,) == (DEAD,)
            assert bench.changes == [SilenceChange(DEAD, True, True, [key("shop/web")])]
            (event,) = bench.changes[0].occurrences("node-a")
            assert event.note.startswith("endpoint 10.1.1.4:8080 refuses node node-a, which sends new connections")
            bench.kernel.refusing, bench.answering = [], {DEAD}
            await until(lambda: not silent_places(bench.state).places)

    asyncio.run(main())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL])
async def test_a_lack_of_the_node_is_no_answer(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """If the node lacks resources for a probe, the answer doesn't blame the endpoint."""
    lack = OSError(number, os.strerror(number))
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", AsyncMock(side_effect=lack))
    assert await answer_of(DEAD, 1.0) is ProbeAnswer.UNTRIED


async def test_without_files_there_is_no_answer() -> None:
    """If the process may open no further file, the answer doesn't blame the endpoint."""
    with no_files_left():
        assert await answer_of(DEAD, 1.0) is ProbeAnswer.UNTRIED


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (None, ProbeAnswer.ACCEPTED),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ProbeAnswer.REFUSED),
        (OSError(errno.EHOSTUNREACH, "no route"), ProbeAnswer.NONE),
        (TimeoutError(), ProbeAnswer.NONE),
    ],
)
async def test_answers_of_endpoints(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, answer: ProbeAnswer
) -> None:
    """A connection is accepted or refused, and anything else on the way to the endpoint is no answer."""
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", AsyncMock(side_effect=error))
    assert await answer_of(DEAD, 1.0) is answer


def test_a_probe_that_could_not_be_made_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """While probes can't be made, the endpoint stays, and the metric of probes doesn't move."""

    async def main() -> None:
        async with Bench(cluster(), monkeypatch) as bench:
            bench.is_poor = True
            bench.kernel.wait_for(DEAD)
            await until(lambda: bench.kernel.questions >= 20)
            assert (set(bench.tried), silent_places(bench.state).places) == ({DEAD}, ())
            assert 'nftproxy_silence_checks_total{answered="false"} 0.0' in bench.metrics.exposition().decode()

    asyncio.run(main())


def test_answer_to_us_lets_an_endpoint_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that answers the node stays, however many clients have no answer, and is probed now and then."""

    async def main() -> None:
        async with Bench(cluster(), monkeypatch) as bench:
            bench.answering.add(DEAD)
            bench.kernel.wait_for(DEAD, 50)
            await until(lambda: bench.kernel.questions >= 20)
            assert (bench.tried, silent_places(bench.state).places, bench.kernel.forgotten) == ([DEAD], (), [])

    asyncio.run(main())


@pytest.mark.parametrize(("place", "is_stuck"), [(DEAD, False), (DEAD, True), (GONE, False)])
def test_a_fresh_retransmission_does_not_count(place: Place, is_stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection counts only some time after its last packet, as the answer may be on its way."""

    async def main() -> None:
        async with Bench(cluster(annotations=ALL), monkeypatch) as bench:
            bench.kernel.wait_for(place, waits=RETRANSMISSION_WAIT / 2, is_stuck=is_stuck)
            await until(lambda: bench.kernel.questions >= 20)
            assert (bench.tried, silent_places(bench.state).places, bench.kernel.forgotten) == ([], (), [])

    asyncio.run(main())


def test_connections_that_got_an_icmp_error_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go to other endpoints even if the endpoint answers the node."""

    async def main() -> None:
        async with Bench(cluster(annotations=ALL), monkeypatch) as bench:
            bench.answering.add(DEAD)
            bench.kernel.wait_for(DEAD, 2, is_stuck=True)
            await until(lambda: not bench.kernel.waiting)
            assert ([each.place for each in bench.kernel.forgotten], silent_places(bench.state).places) == (
                [DEAD] * 2,
                (),
            )

    asyncio.run(main())


def test_connections_to_an_endpoint_that_has_left_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without an answer from an endpoint that no slice has any more proves nothing, and moves at once."""

    async def main() -> None:
        async with Bench(cluster(), monkeypatch) as bench:
            bench.kernel.wait_for(DEAD, waits=RETRANSMISSION_WAIT / 2)
            await until(lambda: bench.kernel.questions >= 2)
            bench.state.ingest(Put(slice_of(endpoints=["10.1.0.4"], ports=PORTS)))
            bench.watch.rules_loaded()
            bench.kernel.wait_for(DEAD)
            await until(lambda: not bench.kernel.waiting)
            assert [each.place for each in bench.kernel.forgotten] == [DEAD] * THRESHOLD
            assert (bench.tried, silent_places(bench.state).places) == ([], ())

    asyncio.run(main())


def test_endpoint_that_goes_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """When its slice has gone an endpoint is no longer silent, and nothing is reported of it."""

    async def main() -> None:
        async with Bench(cluster(), monkeypatch) as bench:
            bench.kernel.wait_for(DEAD)
            await until(lambda: silent_places(bench.state).places)
            bench.kernel.waiting = []
            bench.state.ingest(Removed(EndpointSlice, slice_of().key))
            bench.watch.rules_loaded()
            await until(lambda: not silent_places(bench.state).places)
            assert [each.is_silent for each in bench.changes] == [True]

    asyncio.run(main())


def test_kernel_that_does_not_answer_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the kernel doesn't answer, silent endpoints stay silent, a warning says why, and the next look is delayed."""

    async def main() -> None:
        async with Bench(cluster(), monkeypatch) as bench:
            bench.kernel.wait_for(DEAD)
            await until(lambda: silent_places(bench.state).places)
            bench.kernel.fails = True
            await until(lambda: bench.faults)
            assert silent_places(bench.state).places == (DEAD,)
            bench.kernel.fails = False
            looks = bench.kernel.looks
            await until(lambda: bench.kernel.looks > looks and not bench.faults[-1][1])
            assert bench.faults[0][0] == bench.faults[-1][0] == "NFT418"
            assert bench.faults[0][1]

    asyncio.run(main())


def test_probes_take_turns_by_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint of another namespace is probed at once, even if many of a namespace wait for their probe."""

    async def main() -> None:
        crowd = [f"10.1.2.{number + 1}" for number in range(MOST_TRIED * 2)]
        state = cluster()
        state.ingest(Put(service("evil/web", cluster_ips=["10.96.0.66"], annotations=LEAVE_OUT)))
        state.ingest(Put(slice_of("evil/web", endpoints=crowd, ports=PORTS)))
        bench, gate = Bench(state, monkeypatch), asyncio.Semaphore(0)

        async def connect(place: Place, _patience: float) -> ProbeAnswer:
            bench.tried.append(place)
            await gate.acquire()
            return ProbeAnswer.NONE

        bench.watch = SilenceWatch(state, Family, bench.kernel, bench.metrics, bench.changes.append, connect)
        async with bench:
            for address in crowd:
                bench.kernel.wait_for(Place(Address(address), 8080), 1, more=True)
            await until(lambda: len(bench.tried) == MOST_TRIED // 2)
            bench.kernel.wait_for(DEAD, 1, more=True)
            await until(lambda: DEAD in bench.tried)
            assert len(bench.tried) == MOST_TRIED // 2 + 1
            gate.release()
            gate.release()
            await until(lambda: len(bench.tried) == MOST_TRIED // 2 + 3)

    asyncio.run(main())


def test_namespaces_without_room_are_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each look that finds a namespace over its share is counted, and a single warning names the namespace."""

    async def main() -> None:
        async with Bench(cluster(), monkeypatch) as bench:
            bench.kernel.crowds = {"shop", "gone"}
            bench.kernel.wait_for(DEAD, 1)
            await until(lambda: bench.kernel.questions >= 3)
            metrics = bench.metrics.exposition().decode()
            (counted,) = re.findall(
                r'^nftproxy_silence_overflows_total\{ip_family="IPv4"\} (.+)$', metrics, re.MULTILINE
            )
            assert float(counted) >= 3
            messages = [each.getMessage().partition(" have no answer")[0] for each in caplog.records]
            assert messages.count("more connections of namespaces shop") == 1

    asyncio.run(main())


def test_only_services_that_ask_for_it_are_compiled_again() -> None:
    """A change of an endpoint's silence recompiles only the Services that leave the endpoint out."""
    state = cluster()
    state.ingest(Put(service("shop/plain", cluster_ips=["10.96.0.11"])))
    state.ingest(Put(slice_of("shop/plain", endpoints=("10.1.0.4", "10.1.1.4"), ports=PORTS)))
    state.ingest(Put(service("shop/other", cluster_ips=["10.96.0.12"], annotations=LEAVE_OUT)))
    state.ingest(Put(slice_of("shop/other", endpoints=("10.1.1.4",), ports=PORTS)))
    touched = {key("shop/web"), key("shop/other")}
    assert state.ingest(Put(SilentPlaces((DEAD,)))) == Invalidation(endpoints=touched)
    assert state.ingest(Put(SilentPlaces((DEAD,)))) == Invalidation()
    assert watched_places(state).keys() == {DEAD, Place(Address("10.1.0.4"), 8080)}
    plain, web = (state.services[key(name)] for name in ("shop/plain", "shop/web"))
    assert [state.endpoints_of(each, Family.IPV4).left_out for each in (plain, web)] == [(), (DEAD,)]


def test_skeleton_watches_while_any_service_asks_for_it() -> None:
    """Only the first and the last Service with the annotation touch the skeleton."""
    state = cluster(annotations={})
    other = service("shop/other", cluster_ips=["10.96.0.11"], annotations=LEAVE_OUT)
    assert state.ingest(Put(service(annotations=LEAVE_OUT))).table
    assert not state.ingest(Put(other)).table
    assert not state.ingest(Put(service())).table
    assert state.ingest(Removed(Service, other.key)).table
