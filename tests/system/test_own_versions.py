"""Two versions of nftproxy take turns with a node, as at an upgrade and a rollback, while connections are tried.

The other version's tables are as it wrote them (tests/support/own_versions.py).  If both declare the same sets, the
later agent refills them.  Else it replaces the tables, as an agent of the other version would replace ours, and only a
connection of that very moment may lose its first packet, which its client sends again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from nftproxy_conformance.lab import DROPPED, UNTOUCHED, Lab, Origin, Outcome, Probe, obstacle
from nftproxy_conformance.lab.topology import DEFAULT_SOURCES

from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.objects import Service
from nftproxy.rules.transaction import Transaction
from tests.support.background import repeating
from tests.support.churn import Churn, Step, full_transaction, node_kernel
from tests.support.explained import case_of, outcomes
from tests.support.own_versions import OwnVersion, own_versions
from tests.support.processes import AgentProcess
from tests.support.waiting import wait_until
from tests.system.faults.mortal import DIES_BEFORE

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]


class OtherShape(OwnVersion):
    """A version that declared one more set, so that its tables have another shape."""

    @property
    def tables(self) -> Transaction:
        """The version's tables with that set."""
        text = re.sub('(comment "nftproxy )[^"]*', r"\1another", super().tables.text)
        return Transaction(text.replace("  set nodeport-ips {", f"{ANOTHER_SET}  set nodeport-ips {{"))


ANOTHER_SET = "  set another {\n    typeof meta l4proto\n  }\n"
KEPT = [] if obstacle() else own_versions(wide_maps=probe().capabilities.wide_maps)
VERSIONS = {version.directory.name: version for version in KEPT}
VERSIONS |= {f"{name}, another shape": OtherShape(*version) for name, version in VERSIONS.items()}
each_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)

STICKY = {"10.96.0.50": "10.1.0.{}", "fd00:96::50": "fd00:1::{:x}"}
"""ClusterIPs of shop/cart, which has session affinity, and addresses of clients."""
CLIENTS = 40


def expected(version: OwnVersion) -> Mapping[Probe, frozenset[Outcome]]:
    """Connections to each address and port of each Service from pods and from outside, and where they may arrive."""
    cluster = version.cluster
    services = [each.key for each in cluster.manifests.objects if isinstance(each, Service)]
    places = [place for key in services for place in cluster.explain(f"svc/{key}").places if place.owner]
    found = {}
    for place, origin in itertools.product(places, (Origin.POD, Origin.OUTSIDE)):
        if place.front in ("node port at localhost", "health-check node port"):
            continue
        source = DEFAULT_SOURCES[origin][place.family is Family.IPV6]
        way = Probe(origin, place.address, place.port, place.protocol.value, source)
        found[way] = outcomes(case_of(cluster.pipeline, way))
    return found


def visits(lab: Lab) -> list[object]:
    """The endpoints that clients of a Service with session affinity reach now."""
    ways = [
        Probe(Origin.POD, address, 80, "tcp", client.format(number + 100))
        for address, client in STICKY.items()
        for number in range(CLIENTS)
    ]
    return [outcome.endpoint for outcome in lab.connect_many(ways)]


def has_same_shape(lab: Lab, kernel: Kernel, version: OwnVersion) -> bool:
    """Whether the present agent refills the tables that the node has."""
    pipeline = version.cluster.pipeline
    installed = {family: lab.node.call(kernel.read_back, family) for family in Family}
    return all(pipeline.refilled(family, found) is not None for family, found in installed.items())


@each_version
def test_the_kept_tables_do_what_is_expected(lab: Lab, version: OwnVersion) -> None:
    """Connections through the other version's tables arrive where the present code says."""
    node_kernel(lab).apply(version.tables)
    ways = expected(version)
    assert len({outcome for found in ways.values() for outcome in found}) > 20
    tried = {way: set(lab.connect_many([way] * 64)) for way in ways}
    assert {way: found for way, found in tried.items() if not found <= ways[way]} == {}


@each_version
def test_an_upgrade_and_a_rollback_lose_no_connection(lab: Lab, version: OwnVersion) -> None:
    """While the two versions' tables take turns, each connection arrives, except in the moment of a replacement."""
    kernel = node_kernel(lab)
    kernel.apply(version.tables)
    pipeline = version.cluster.pipeline
    ways = expected(version)

    def turns() -> Iterator[Step[int]]:
        for number in itertools.count():
            yield Step(full_transaction(lab, kernel, pipeline), 2 * number)
            yield Step(version.tables, 2 * number + 1)

    with Churn(lab, -1, turns(), pause=0.05) as churn:
        tries = churn.try_all(itertools.cycle(ways), 5_000, at_once=10, transactions=20)
    astray = [each for each in tries if each.outcome not in ways[asked(each.outcome)]]
    print(f"{len(tries):,} connections, {churn.count} replacements, {len(astray)} astray")  # noqa: T201 -- figures
    assert {each.outcome for each in astray} <= {DROPPED, UNTOUCHED}
    assert all(len(churn.in_force(each.began, each.ended)) > 1 for each in astray)


def asked(outcome: Outcome) -> Probe:
    """The connection that has an outcome, from any source port."""
    assert outcome.probe is not None
    return replace(outcome.probe, sport=None)


@each_version
def test_an_agent_takes_over_also_after_it_was_killed(
    lab: Lab, version: OwnVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that is killed before its transaction, and the next that lives, lose no connection.

    Clients that the other version's tables remember keep their endpoints if the sets are declared in the same way.
    """
    kernel = node_kernel(lab)
    kernel.apply(version.tables)
    is_same = has_same_shape(lab, kernel, version)
    before = visits(lab)
    ways = expected(version)
    turn, seen = itertools.cycle(ways), list[Outcome]()
    agent = AgentProcess(lab.node, tmp_path / "log", "tests.system.faults.mortal")
    arguments = [f"--source={version.manifests}", f"--config={version.config}", "--hostname-override=node-a"]
    arguments.append(f"--agent-socket={tmp_path}/socket")
    deaths = 0
    with repeating(lambda: seen.extend(lab.connect_many(itertools.islice(turn, 10)))):
        for number in itertools.count():
            monkeypatch.setenv(DIES_BEFORE, str(number))
            agent.launch(*arguments)
            wait_until(lambda: agent.has_died or "loaded the rules: " in agent.log(), agent.log)
            if not agent.has_died:
                break
            deaths += 1
            agent.await_end()
        tried = len(seen)
        wait_until(lambda: len(seen) > tried, agent.log)
        agent.stop()
    assert deaths
    astray = [outcome for outcome in seen if outcome not in ways[asked(outcome)]]
    print(f"{len(seen):,} connections, {len(astray)} astray, same shape: {is_same}")  # noqa: T201 -- figures
    assert set(astray) <= (set() if is_same else {DROPPED, UNTOUCHED})
    if is_same:
        assert visits(lab) == before
    assert has_same_shape(lab, kernel, version)
