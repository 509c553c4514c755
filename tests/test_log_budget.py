"""Lines of the log whose number tenants or clients decide: each has a namespace, and a budget bounds them."""

from __future__ import annotations

import ast
import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from nftproxy.agent.http.listeners import Listeners
from nftproxy.agent.reporting.event_recorder import EventRecorder
from nftproxy.agent.reporting.fault_reporter import FaultReporter
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.occurrences import Occurrence
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.api.responses import ErrorStatus
from nftproxy.extensions.failover.agent.silence_watch import SilenceChange, SilenceWatch
from nftproxy.extensions.least_connections.agent.load_watch import LoadWatch
from nftproxy.extensions.least_connections.factors import ListKey
from nftproxy.extensions.localhost.agent.forwarder import LocalhostForwarder
from nftproxy.extensions.localhost.forwardings import Forwarding
from nftproxy.logs import CodeFilter, LineFilter, inform, warn
from nftproxy.model.addresses import Address, Family
from nftproxy.model.codes import Code
from nftproxy.model.events import Put, Removed
from nftproxy.model.fairness import LINES_OF_A_NAMESPACE, LINES_OF_ALL
from nftproxy.model.objects import Place, Service, TrafficPolicy
from nftproxy.pipeline import Pipeline
from nftproxy.policy.health_checks import HealthCheck
from tests.agent.world import EVERYTHING, FakeKernel, Timed, World, source
from tests.support.factories import key, pipeline, service
from tests.support.metrics import all_metrics
from tests.support.selection import every

CHECKOUT = Path(__file__).resolve().parents[1]
NAMES, FEW = 10_000, 1_000
"""Names that a tenant makes and deletes, where that is quick, and elsewhere."""
BURST = LINES_OF_A_NAMESPACE[0]
HERE = Address("127.0.0.1")

NEEDS_NO_BUDGET = {
    "agent/daemon.py": "once, at a start",
    "agent/lifecycle/background.py": "a pause follows",
    "agent/lifecycle/reload.py": "the configuration's author decides",
    "agent/lifecycle/rivals.py": "at each look for other proxies",
    "agent/lifecycle/shutdown.py": "once, at the end",
    "agent/lifecycle/startup_taint.py": "a pause follows, which doubles",
    "agent/loop.py": "at each start, commit of another program, periodic check, and once in a while",
    "agent/reporting/fault_reporter.py": "at each look at the node",
    "agent/reporting/sync_reporter.py": "once in a while",
    "agent/socket/agent_socket.py": "root asks",
    "agent/sync/loading.py": "a pause follows, or another program has changed the table",
    "commands/run.py": "at a start",
    "extensions/counts/agent/service_counts.py": "a pause follows, which doubles",
    "extensions/failover/agent/silence_watch.py": "once in a while, or a pause follows, which doubles",
    "kernel/conntrack/sweeps.py": "a pause follows, which doubles",
    "kernel/sysctl.py": "at a start",
    "sources/directory.py": "the limits of this machine decide",
    "sources/access.py": "the owner of the credentials decides",
    "sources/api_client.py": "faults of objects have a budget of their own, and a pause follows an error of the API",
    "sources/interfaces.py": "a pause follows, which doubles",
}
"""The modules with warnings that no tenant or client multiplies, and what bounds these."""

BUDGETED = {
    "agent/http/listeners.py": {"listener.failure.code"},
    "agent/http/reserve.py": {"Code.NO_DESCRIPTORS"},
    "agent/http/server.py": {"Code.DEFECT"},
    "agent/loop.py": {"Code.CHANGE_FAILED", "Code.CHANGE_REFUSED"},
    "agent/reporting/event_recorder.py": {"Code.EVENTS_DROPPED", "Code.EVENT_NOT_SENT", "Code.EVENT_DENIED"},
    "agent/reporting/fault_reporter.py": {"code"},
    "agent/socket/agent_socket.py": {"Code.AGENT_SOCKET_STRANGER"},
    "agent/sync/loading.py": {"Code.CHANGE_FAILED", "Code.QUARANTINED"},
    "extensions/failover/agent/silence_watch.py": {"FailoverCode.ENDPOINT_SILENT"},
    "extensions/least_connections/agent/load_watch.py": {"LeastConnectionsCode.LEAST_CONNECTIONS_OVERSIZED"},
    "extensions/localhost/agent/forwarder.py": {
        "failure.code",
        "LocalhostCode.LOCALHOST_ACCEPT_FAILED",
        "LocalhostCode.LOCALHOST_FULL",
        "Code.DEFECT",
    },
    "sources/directory.py": {"problem"},
}
"""The warnings under the budget, by module: their codes as the source has them."""


class Lines(logging.Handler):
    """The lines that the agent's log would have at a single moment."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.budget = CodeFilter(), LineFilter(lambda: 0.0)
        self.addFilter(self.codes)
        self.addFilter(self.budget)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.texts.append(record.getMessage())


@contextmanager
def logged() -> Iterator[Lines]:
    """Log to lines with a budget."""
    log, lines = logging.getLogger("nftproxy"), Lines()
    before = log.level
    log.setLevel(logging.INFO)
    log.propagate = False  # pytest keeps each line
    log.addHandler(lines)
    try:
        yield lines
        lines.budget.report_left_out()
    finally:
        log.removeHandler(lines)
        log.setLevel(before)
        log.propagate = True


def faults_of(agent: Pipeline) -> FaultReporter:
    """A reporter whose Events go nowhere."""
    return FaultReporter(agent, Mock(spec=EventRecorder), SyncReporter(Health(30.0), Metrics()))


async def conflicts() -> None:
    """Services that claim another's external address, a hundred at a time."""
    agent = pipeline(service("shop/web", external_ips=["192.0.2.7"], created=1))
    faults = faults_of(agent)
    for first in range(0, NAMES, 100):
        made = [
            service(f"evil/s{first + n}", cluster_ips=[f"10.97.0.{n}"], external_ips=["192.0.2.7"], created=9)
            for n in range(100)
        ]
        agent.ingest([Put(each) for each in made])
        faults.report_services()
        agent.ingest([Removed(Service, each.key) for each in made])
        faults.report_services()


async def excess() -> None:
    """Services beyond the budget, one at a time, since Services of a namespace share a line."""
    agent = pipeline(element_budget=1)
    faults = faults_of(agent)
    for number in range(FEW):
        agent.ingest([Put(service(f"evil/s{number}"))])
        faults.report_services()
        agent.ingest([Removed(Service, key(f"evil/s{number}"))])
        faults.report_services()


async def health_check_ports() -> None:
    """Services with a health-check node port that another program has."""
    reporter = SyncReporter(Health(30.0), Metrics())
    config = pipeline(healthz_bind_address="127.0.0.1:0", metrics_bind_address="127.0.0.1:0").settings.config
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with Listeners(config, reporter, lambda _: None) as listeners:
            for number in range(NAMES):
                check = HealthCheck(key(f"evil/s{number}"), {Family.IPV4: 1})
                await listeners.serve_checks({port: check}, [HERE])


async def ports_at_localhost() -> None:
    """Services with a node port that another program has at localhost."""
    forwarder = LocalhostForwarder(all_metrics(), lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = Place(HERE, taken.getsockname()[1])
        for number in range(NAMES):
            forwarder.serve({place: Forwarding(key(f"evil/s{number}"), (place,), None)})
    await forwarder.close()


async def silent_endpoints() -> None:
    """Endpoints that don't answer, and then do."""
    watch = SilenceWatch(pipeline().state, Family, Mock(), all_metrics(), lambda _: None)
    for number in range(NAMES):
        place, services = Place(Address("10.1.0.4"), 80), (key(f"evil/s{number}"),)
        watch._report_change(SilenceChange(place, True, False, services))
        watch._report_change(SilenceChange(place, False, False, services))


async def unbalanced_lists() -> None:
    """Services whose lists are too long for least connections."""
    lists = SimpleNamespace(by_key={}, oversized=set())
    watch = LoadWatch(lists, lambda _: Mock(), all_metrics())  # type: ignore[arg-type]
    for number in range(NAMES):
        lists.oversized = {ListKey(key(f"evil/s{number}"), "http", Family.IPV4, TrafficPolicy.CLUSTER)}
        watch.rules_loaded()


async def denied_events() -> None:
    """Events that the API denies."""
    denied = asyncio.Semaphore(0)

    async def post(*_: object) -> ErrorStatus:
        denied.release()
        return ErrorStatus(403, "no")

    events = EventRecorder("node-a")
    for number in range(NAMES):
        occurrence = Occurrence(key(f"evil/s{number}"), "AddressConflict", "Claim", "x", Code.CONFLICT_TAKEN)
        events.report([occurrence])
    task = asyncio.create_task(events.run(post))
    for _ in range(25):  # at once, then one a second
        await denied.acquire()
    task.cancel()
    await asyncio.wait([task])


SOURCES: Mapping[str, tuple[Callable[[], Coroutine[object, object, None]], int]] = {
    "conflicts": (conflicts, NAMES),
    "excess": (excess, 2 * FEW),
    "health-check ports": (health_check_ports, NAMES),
    "ports at localhost": (ports_at_localhost, NAMES),
    "silent endpoints": (silent_endpoints, 2 * NAMES),
    "unbalanced lists": (unbalanced_lists, NAMES),
}
"""What a tenant multiplies by new names, and the least number of lines without a budget."""


@pytest.mark.parametrize("name", every(6, list(SOURCES)))
def test_new_names_have_a_budget_of_lines(name: str) -> None:
    """However many names a tenant makes and deletes, the log has its namespace's lines, and counts the rest."""
    drive, least = SOURCES[name]
    with logged() as lines:
        asyncio.run(drive())
    *written, last = lines.texts
    assert len(written) == BURST
    count = int(last.split()[1])
    assert last == f"and {count} more lines like these, {count} of them in namespace evil"
    assert count >= least - BURST


def test_events_have_a_budget_of_lines() -> None:
    """An Event that the API denies costs a line of its namespace, and lines about dropped Events have a budget."""
    with logged() as lines:
        asyncio.run(denied_events())
    assert sum("the API denies an Event" in each for each in lines.texts) <= 25
    assert sum("dropped the 1 oldest" in each for each in lines.texts) == BURST
    assert len(lines.texts) <= BURST + 26


def test_refused_services_have_a_budget_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Service that the kernel refuses causes a search, a load and lines, of which the budget bounds the lines."""
    monkeypatch.setattr("nftproxy.model.fairness.LINES_OF_A_NAMESPACE", (10, 1.0))
    kernel, batches = FakeKernel(), list[Timed]([(0.0, EVERYTHING)])
    kernel.unwanted = ["10.97.0."]
    for number in range(30):
        made = Put(service(f"evil/s{number}", cluster_ips=[f"10.97.0.{number}"]))
        batches.append((100.0 * number + 1, [made, Removed(Service, key(f"evil/s{number - 1}"))]))
    with logged() as lines:
        World(kernel).run(source(*batches), until=3000.0)
    assert lines.codes.counts()[Code.QUARANTINED] == 30
    assert sum("Service evil/s" in each for each in lines.texts) == 10
    assert lines.texts[-1].startswith("and ")


def test_all_namespaces_have_a_budget() -> None:
    """A thousand namespaces together have no more lines than all may have, and lines without a namespace stay."""
    with logged() as lines:
        for number in range(4000):
            inform("%(number)d", of=f"ns-{number}", number=number)
        warn(Code.CONNTRACK_FULL, "full")
    *written, full, left_out = lines.texts
    assert (len(written), full) == (LINES_OF_ALL[0], "full")
    assert left_out.startswith(f"and {4000 - LINES_OF_ALL[0]} more lines like these")


def test_warnings_that_are_left_out_count() -> None:
    """The metric of warnings has those that the log leaves out."""
    with logged() as lines:
        for _ in range(NAMES):
            warn(Code.CONFLICT_TAKEN, "lost", of="evil")
    assert lines.codes.counts()[Code.CONFLICT_TAKEN] == NAMES


def warnings_of(path: Path) -> Iterator[tuple[str, bool]]:
    """The warnings of a module: the code as the source has it, and whether a namespace is named."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("warn", "warn_of"):
            yield ast.unparse(node.args[0]), any(each.arg == "of" for each in node.keywords)


def test_every_warning_has_a_budget_or_a_bound() -> None:
    """Each warning names a namespace, or stands in a module whose other warnings something else bounds."""
    package = CHECKOUT / "nftproxy"
    paths = [path for path in package.rglob("*.py") if path.parts[-2] not in ("nftproxy", "config")]
    found = {str(path.relative_to(package)): set(warnings_of(path)) for path in paths}
    budgeted = {path: {code for code, has_namespace in each if has_namespace} for path, each in found.items()}
    assert {path: codes for path, codes in budgeted.items() if codes} == BUDGETED
    others = {path for path, each in found.items() if not all(has_namespace for _, has_namespace in each)}
    assert others == set(NEEDS_NO_BUDGET)
