"""Among many foreign entries a sweep takes no memory, and delays no change.

NFTPROXY_TESTS=long sweeps among a million, and measures the delay.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from nftproxy.kernel.conntrack.sweeps import TCP, UDP, Sweeper
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Address, Protocol
from nftproxy.policy.flows import NO_ENDPOINTS, AddressPort, Sweeps
from nftproxy.rules.transaction import Transaction
from tests.conftest import CLONE_NEWNET
from tests.kernel.conntrack.entries import FRONT, Tracked, fill, sweeps, track
from tests.support.factories import IPV4
from tests.support.processes import peak_growth

CHANGES, TURNS, ROUNDS = 100, 5, 8
"""Changes that are measured in a turn, turns of a round with sweeps and without, and rounds at most, until the machine
is idle.
"""

LONG = pytest.mark.skipif(os.environ.get("NFTPROXY_TESTS") != "long", reason="NFTPROXY_TESTS=long")
SHORT = 50_000
A_MILLION = [
    pytest.param((1_000_000, UDP), id="a million of UDP", marks=LONG),
    pytest.param((1_000_000, TCP), id="a million of TCP", marks=LONG),
]
each_crowd = pytest.mark.parametrize("crowd", [pytest.param((SHORT, UDP), id="short"), *A_MILLION], indirect=True)


@pytest.fixture
def crowd(request: pytest.FixtureRequest, namespace: None) -> Iterator[None]:  # noqa: ARG001 -- where they are
    """Many foreign entries, in this and other namespaces, all of which stay.

    The machine's limit is for each network namespace, and the kernel walks the entries of all.  So as many namespaces
    are filled as necessary, this namespace last.
    """
    (total, protocol), limit = request.param, int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text()) - 1000
    here = min(total // 2, limit)
    elsewhere = [min(limit, total - here - first) for first in range(0, total - here, limit)]
    threads = [_filled(count, protocol) for count in elsewhere]
    fill(here, protocol)
    yield
    assert _entry_count() == here
    assert [thread.submit(_entry_count).result() for thread in threads] == elsewhere
    for thread in threads:
        thread.shutdown()


@pytest.mark.slow
@each_crowd
@pytest.mark.usefixtures("crowd")
def test_a_sweep_among_many_takes_no_memory() -> None:
    """Among a million foreign entries a sweep takes no more memory than without them, and only stale entries go."""
    for protocol in (socket.IPPROTO_UDP, socket.IPPROTO_TCP):
        track(Tracked("198.51.100.7 1", FRONT, "10.1.0.5 53", protocol))
    grown = peak_growth()
    for ports in (1, 9):
        fronts = itertools.product(range(53, 53 + ports), (Protocol.UDP, Protocol.TCP))
        wanted: Sweeps = {AddressPort(Address("10.96.0.10"), *front): NO_ENDPOINTS for front in fronts}
        began, worked = time.monotonic(), time.thread_time()
        with closing(Sweeper(time.sleep)) as sweeper:
            assert sweeper.sweep(wanted).total() == 2 * (ports == 1)
        wall, cpu = time.monotonic() - began, time.thread_time() - worked
        print(f"{ports} fronts, {_entry_count():,} entries here: {wall:.2f} s, {cpu:.2f} s of CPU")  # noqa: T201
    print(f"{grown() >> 10} KiB more memory")  # noqa: T201 -- figures
    assert grown() < 4 << 20


@pytest.mark.parametrize("crowd", [(SHORT, UDP)], indirect=True)
@pytest.mark.usefixtures("crowd")
def test_changes_go_through_while_a_sweep_rests() -> None:
    """A sweep rests after each answer of at most 50 entries, and the kernel takes a change during such a rest."""
    kernel = Kernel()
    kernel.apply(Transaction(f"table {IPV4.table} {{\n  set s {{\n    type inet_service\n  }}\n}}\n"))
    verbs, rests = itertools.cycle(["add", "delete"]), list[float]()

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) % 20 == 0:
            kernel.apply(Transaction(f"{next(verbs)} element {IPV4.table} s {{ 80 }}\n"))

    with closing(Sweeper(rest)) as sweeper:
        assert not sweeper.sweep(sweeps(**{FRONT: ""}))
    assert len(rests) >= _entry_count() / 50
    assert all(rests)


@pytest.mark.parametrize("crowd", A_MILLION, indirect=True)
@pytest.mark.usefixtures("crowd")
def test_sweeps_delay_no_change() -> None:
    """During continuous sweeps, the slowest of a hundred changes takes less than twice the time without sweeps.

    Turns with and without sweeps alternate, so that other load of the machine counts in both.
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
    """Make some changes, and return the duration of each in milliseconds."""
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
    """Sweeps continuously, as while endpoints keep changing, as long as `goes_on` is set.  Counts answers."""

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


def _filled(count: int, protocol: bytes) -> ThreadPoolExecutor:
    """A network namespace, held by a thread, with `count` entries."""
    thread = ThreadPoolExecutor(max_workers=1)
    assert thread.submit(ctypes.CDLL(None).unshare, CLONE_NEWNET).result() == 0
    thread.submit(fill, count, protocol).result()
    return thread
