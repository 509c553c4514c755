"""The fast path without a kernel that has flowtables: its table, its interfaces, and how the agent goes without it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Sequence

import msgspec
import pytest

from nftproxy.agent.agent_part import AgentContext
from nftproxy.agent.reporting.event_recorder import EventRecorder
from nftproxy.agent.reporting.fault_reporter import FaultReporter
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.doctor.observations import Observations
from nftproxy.explanation.question import ToAddress
from nftproxy.extensions.fast_path.agent import fast_path, part
from nftproxy.extensions.fast_path.agent.fast_path import keep_fast_path
from nftproxy.extensions.fast_path.agent.flowtable import fast_path_interfaces, follow_interfaces
from nftproxy.extensions.fast_path.agent.part import FastPathPart
from nftproxy.extensions.fast_path.checks import passed_by
from nftproxy.extensions.fast_path.codes import FastPathCode
from nftproxy.extensions.fast_path.fields import FastPath, FastPathScope
from nftproxy.extensions.fast_path.words import WORDS
from nftproxy.kernel.child_process import in_scratch_namespace
from nftproxy.kernel.nfnetlink.nft_queries import flowtables
from nftproxy.kernel.threads import AsyncKernel
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.base_chains import BaseChain
from nftproxy.model.errors import Unavailable
from tests.support.factories import pipeline, service, slice_of
from tests.support.metrics import all_metrics


def test_interfaces_are_chosen_by_name_or_by_a_beginning() -> None:
    """Named interfaces come first, then those with a beginning, never loopback, and no interface that isn't there."""
    present = ["veth2", "lo", "eth0", "veth1", "cni0"]
    assert FastPath(("veth*", "eth0", "gone")).chosen(present) == ["eth0", "veth1", "veth2"]
    assert FastPath(("*",)).chosen(present) == ["cni0", "eth0", "veth1", "veth2"]
    assert FastPath().chosen(present) == []
    assert FastPath(("pod*", "po*", "port*", "eth0", "e*")).beginnings == ("e", "po")


@pytest.mark.parametrize(
    ("are_known", "interfaces", "wanted"),
    [
        (True, ("veth1*", "ve*", "client"), [["ve*", "client"], ["ve*", "client"]]),
        (False, ("ve*", "client"), [["client", "veth1", "veth2"], ["client", "veth1"]]),
        (True, ("*",), [["client", "veth1", "veth2"], ["client", "veth1"]]),
        (True, ("l*", "client"), [["client"], ["client"]]),
    ],
)
def test_a_kernel_that_knows_beginnings_follows_interfaces(
    monkeypatch: pytest.MonkeyPatch, are_known: bool, interfaces: tuple[str, ...], wanted: list[list[str]]
) -> None:
    """Such a kernel gets beginnings, but never loopback's, and is asked once.  Others get each name."""
    asked: list[Sequence[str]] = []
    given: list[list[str]] = []
    reports: list[tuple[int, str]] = []

    async def appearing(_period: float) -> AsyncGenerator[frozenset[str]]:
        yield frozenset({"lo", "client", "veth1", "veth2"})
        yield frozenset({"lo", "client", "veth1"})

    async def provided(_table: object, _kernel: object) -> None:
        pass

    monkeypatch.setattr(fast_path, "watch_interfaces", appearing)
    monkeypatch.setattr(fast_path, "_provide_table", provided)

    def takes(beginnings: Sequence[str]) -> bool:
        asked.append(beginnings)
        return are_known

    def follow(names: list[str]) -> list[str]:
        given.append(names)
        return []

    monkeypatch.setattr(fast_path, "takes_beginnings", takes)
    monkeypatch.setattr(fast_path, "follow_interfaces", follow)

    async def keep() -> None:
        kernel = AsyncKernel()
        await keep_fast_path(pipeline(fast_path_interfaces=interfaces), kernel, lambda *each: reports.append(each))
        kernel.close()

    asyncio.run(keep())
    assert given == wanted
    assert len(asked) <= 1
    of_all = "l*" not in interfaces
    assert reports == [(3 if of_all else 1, ""), (2 if of_all else 1, "")]


@pytest.mark.parametrize(
    ("scope", "rule"),
    [
        (FastPathScope.SERVICES, "ct status dnat ct status assured numgen random mod 16 0 flow add @established"),
        (FastPathScope.ALL, "{ tcp, udp } ct status assured numgen random mod 16 0 flow add @established"),
    ],
)
def test_the_table_adds_connections(scope: FastPathScope, rule: str) -> None:
    """A single rule adds connections, of Services or all.  Its comment differs, so that a change replaces the table."""
    table = pipeline(fast_path_interfaces=("eth0",), fast_path_connections=scope).whole_tables["fast_path"]
    assert table.text.count("flow add") == 1
    assert rule in table.text
    assert f'comment "{table.comment}"' in table.text
    comments = {
        pipeline(fast_path_interfaces=("eth0",), fast_path_connections=each).whole_tables["fast_path"]
        for each in FastPathScope
    }
    assert len(comments) == 2


def test_rules_without_it_are_the_same() -> None:
    """The other tables don't depend on the fast path."""
    without, with_it = pipeline(), pipeline(fast_path_interfaces=("*",))
    assert without.whole_tables == {}
    assert without.full_transaction({}) == with_it.full_transaction({})


def _kept(interfaces: tuple[str, ...]) -> list[tuple[int, str]]:
    reports: list[tuple[int, str]] = []

    async def keep() -> None:
        kernel, first = AsyncKernel(), asyncio.Event()

        def report(count: int, fault: str) -> None:
            reports.append((count, fault))
            first.set()

        task = asyncio.create_task(keep_fast_path(pipeline(fast_path_interfaces=interfaces), kernel, report))
        await asyncio.wait([task, asyncio.create_task(first.wait())], return_when=asyncio.FIRST_COMPLETED, timeout=60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        kernel.close()

    subprocess.run(["ip", "link", "add", "veth1", "type", "veth", "peer", "name", "other"], check=True)
    asyncio.run(keep())
    return reports


@pytest.mark.usefixtures("namespace")
def test_a_kernel_without_flowtables_is_reported() -> None:
    """The agent has the fast path at the interface, or says that the kernel refuses it.  Off, it reports nothing."""
    count, fault = in_scratch_namespace(_kept, ("veth*",))[0]
    assert (count, fault) == (1, "") or (count == 0 and "all connections take the usual way" in fault)
    assert in_scratch_namespace(_kept, ()) == []


def _without_a_table() -> tuple[object, object, object]:
    return fast_path_interfaces(), follow_interfaces(["lo"]), flowtables()


@pytest.mark.usefixtures("namespace")
def test_nothing_happens_without_a_table() -> None:
    """Without the table there is no flowtable, and an interface can't be added, which is no error of the interface."""
    assert in_scratch_namespace(_without_a_table) == (None, [], [])


def test_a_fast_path_that_is_not_there_is_not_promised() -> None:
    """While the kernel has no fast path, an explanation says that packets pass all chains, and a listing is silent."""
    made = pipeline(service(), slice_of(), fast_path_interfaces=("veth*",))
    spots = [ToAddress(Address("10.96.0.10"), Protocol.TCP, 80)]
    assert "past all chains" in "".join(WORDS.remarks_on_question(made, spots))
    assert list(WORDS.listed(made, service())) == ["established connections at veth* take the fast path"]
    made.unavailable.add("fast_path")
    (remark,) = WORDS.remarks_on_question(made, spots)
    assert remark == "NFT421: there is no fast path at present, so all packets of a connection pass all chains"
    assert list(WORDS.listed(made, service())) == []


def test_the_fast_path_passes_other_chains_by() -> None:
    """Once our fast path is there, other programs' chains on the way and flowtables are named, and no other chains."""
    chains = tuple(
        BaseChain("inet", table, "c", hook, drops=False)
        for table, hook in [("policy", "forward"), ("policy", "input"), ("nftproxy", "forward")]
    )
    chains += tuple(BaseChain("netdev", "early", f"at{at}", "ingress", drops=False, priority=at) for at in (-1, 0))
    facts = Observations(
        node="node-a", base_chains=chains, flowtables=("inet nftproxy-fast-path established", "ip calico f")
    )
    with_it = msgspec.structs.replace(facts, nft_tables=("inet nftproxy-fast-path",))
    (finding,) = passed_by(with_it)
    assert finding.code is FastPathCode.FAST_PATH_PASSES_BY
    assert finding.evidence == (
        "the chain c in the table inet policy (forward)",
        "the chain at0 in the table netdev early (ingress)",
        "the flowtable ip calico f",
    )
    assert list(passed_by(facts)) == []


def test_the_agent_shows_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` has the connections and the interfaces, or says that they are unknown, and has no line if it is off."""
    monkeypatch.setattr(part, "fast_path_interfaces", lambda: frozenset({"veth1", "eth0"}))
    monkeypatch.setattr(part, "offloaded_connections", lambda: 7)
    assert the_part("eth0", "veth*").status() == {"Fast path": ["7 connections, at 2 interfaces: eth0, veth1"]}
    assert the_part().status() == {}

    def unavailable() -> int:
        raise Unavailable("no answer")

    monkeypatch.setattr(part, "offloaded_connections", unavailable)
    unknown = "an unknown number of connections, at 0 interfaces: none"
    assert the_part("eth0").status() == {"Fast path": [unknown]}


def the_part(*interfaces: str) -> FastPathPart:
    """The part of an agent with such a configuration."""
    made = pipeline(fast_path_interfaces=interfaces)
    reports = SyncReporter(Health(30.0), all_metrics())
    faults = FaultReporter(made, EventRecorder("node-a"), reports)
    return FastPathPart(AgentContext(made, AsyncKernel(), reports.metrics, faults, lambda _: None))
