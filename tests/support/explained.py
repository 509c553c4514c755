"""The explanation of a connection as outcomes of the lab, so that the oracle and packets can judge it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nftproxy_conformance.lab import (
    DROPPED,
    NODE,
    PORT_UNREACHABLE,
    TCP_RESET,
    UNTOUCHED,
    Origin,
    Outcome,
    Probe,
    endpoint,
)
from nftproxy_conformance.lab.topology import INTERFACES
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies.probes import probes
from nftproxy_conformance.subjects.rendered import events

from nftproxy.explanation.answer import Case, Fate
from nftproxy.explanation.answering import explain
from nftproxy.explanation.question import Question, Source, SourceKind, ToAddress
from nftproxy.installed import INSTALLED
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.settings import Capabilities
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from tests.support.factories import renderer

KINDS = {
    Origin.POD: SourceKind.POD,
    Origin.NODE: SourceKind.NODE,
    Origin.REMOTE_POD: SourceKind.REMOTE_POD,
    Origin.OUTSIDE: SourceKind.OUTSIDE,
}
_REJECTED = {"tcp reset": TCP_RESET, "icmp port-unreachable": PORT_UNREACHABLE}
_OTHERS = {Fate.DROPPED: DROPPED, Fate.PASSED: UNTOUCHED, Fate.NODE: NODE}


def pipeline_of(world: World, capabilities: Capabilities = Capabilities()) -> Pipeline:  # noqa: B008  # a value
    """A pipeline that has seen a world."""
    made = Pipeline(world.node.name, Settings(world.config, capabilities, INSTALLED), renderer())
    made.ingest(events(world))
    return made


def as_known(world: World) -> World:
    """A copy of a world in which the node has only the addresses that the proxy knows."""
    return world if world.knows_interfaces else world._replace(interfaces=frozenset(world.node.addresses))


def some_questions(world: World, start: int, most: int) -> list[Probe]:
    """At most `most` of the connections worth trying, from all over the list.

    Another `start` gives other connections.
    """
    all_of_them = list(probes(world))
    step = max(1, len(all_of_them) // most)
    return list(itertools.islice(all_of_them, start % step, None, step))[:most]


def question(probe: Probe) -> Question:
    """The question that a probe asks with packets."""
    assert probe.source
    to = ToAddress(Address(probe.address), Protocol(probe.protocol), probe.port)
    return Question(to, Source(KINDS[probe.origin], Address(probe.source), INTERFACES[probe.origin]))


def case_of(pipeline: Pipeline, probe: Probe) -> Case:
    """The only case that explains a probe."""
    (place,) = explain(pipeline, question(probe)).places
    (case,) = place.cases
    return case


def outcomes(case: Case) -> frozenset[Outcome]:
    """All that may become of a connection by an explanation."""
    if case.fate is Fate.ENDPOINT:
        chosen = [each for each in case.endpoints if each.share]
        return frozenset(endpoint(each.address, each.port, masqueraded=each.is_masqueraded) for each in chosen)
    return frozenset({_REJECTED[case.rejection] if case.fate is Fate.REJECTED else _OTHERS[case.fate]})


def disagreements(
    pipeline: Pipeline, probes: Sequence[Probe], expected: Sequence[frozenset[Outcome]]
) -> list[tuple[Probe, frozenset[Outcome], Case]]:
    """The probes that are explained otherwise than expected."""
    cases = [case_of(pipeline, probe) for probe in probes]
    return [row for row in zip(probes, expected, cases, strict=True) if outcomes(row[2]) != row[1]]
