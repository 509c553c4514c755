"""Judges of changes under traffic: restrictions of clients, and health checks of an address family."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nftproxy.model.addresses import Protocol
from nftproxy.model.events import Event
from nftproxy_conformance.lab import DROPPED, TCP_RESET, Kind, Lab, Outcome, Probe
from nftproxy_conformance.lab.outcome import HEALTHY, UNHEALTHY
from nftproxy_conformance.lab.topology import Origin
from nftproxy_conformance.specification.deviations import RESTRICTIONS
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import WRONGLY_ENDED, WRONGLY_GOING_ON, WRONGLY_HEALTHY
from nftproxy_conformance.specification.world import Place, World
from nftproxy_conformance.strategies.probes import probes
from nftproxy_conformance.strategies.worlds import world_after
from nftproxy_conformance.trials.finding import Finding, differs
from nftproxy_conformance.trials.trial import Trial

SECONDS = 10.0
"""Seconds in which a proxy must stop flows, or change its answer to a health check.  nftproxy takes less than one."""
PAUSE = 0.05
"""Seconds between two tries."""


def denied(trial: Trial, case: tuple[World, Sequence[Event]]) -> Finding | None:
    """Judge that a new restriction stops flows that nobody has answered, and no answered connection."""
    before, happened = case
    after = world_after(before, happened)
    trial.load(before)
    lab = trial.subject.lab
    lab.forget()
    tried = list(probes(before))
    with lab.unanswered():
        answered = lab.establish(each for each in trial.connect(tried) if each.endpoint)
        going = [each.probe for each in trial.connect(tried) if each.endpoint and each.probe]
        trial.follow(after, happened)
        oracle = Oracle(after)
        left = _await_denials(trial, [each for each in going if oracle.expected(each) == {DROPPED}])
        if left and not trial.explains(RESTRICTIONS):
            return Finding((before, after), differs(left[0], DROPPED, left[0], WRONGLY_GOING_ON))
        return _first_cut(lab, answered, (before, after))


def _await_denials(trial: Trial, due: Sequence[Probe]) -> list[Outcome]:
    """Send the first packets of flows again until all are dropped, for some seconds.  Return the flows that go on."""
    deadline = time.monotonic() + SECONDS
    while True:
        left = [each for each in trial.connect(due) if each.kind is Kind.ENDPOINT]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(PAUSE)


def _first_cut(lab: Lab, answered: Sequence[Outcome], worlds: tuple[World, ...]) -> Finding | None:
    """The first answered connection that doesn't go on."""
    for outcome, now in zip(answered, lab.next_packets(answered), strict=True):
        if now != outcome:
            return Finding(worlds, differs(outcome, outcome, now, WRONGLY_ENDED))
    return None


def health_checked(trial: Trial, world: World) -> Finding | None:
    """Judge that health-check node ports answer at each address by the endpoints of its family."""
    trial.load(world)
    oracle = Oracle(world)
    ports = {each.health_check_node_port for each in world.services} - {0}
    for place in (Place(address, Protocol.TCP, each) for address in sorted(world.interfaces) for each in sorted(ports)):
        count = oracle.checked(place)
        wanted = TCP_RESET if count is None else HEALTHY if count else UNHEALTHY
        probe = Probe(Origin.NODE, place.address, place.port, source=place.address)
        if (seen := _await_answer(trial, probe, wanted)) != wanted:
            outcome = Outcome(Kind.NODE, probe=probe)
            return Finding((world,), differs(outcome, wanted, seen, WRONGLY_HEALTHY))
    return None


def _await_answer(trial: Trial, probe: Probe, wanted: Outcome) -> Outcome:
    """Ask for health until the answer is the wanted one, for some seconds.  Return the last answer."""
    deadline = time.monotonic() + SECONDS
    while True:
        seen = trial.health(probe)
        if seen == wanted or time.monotonic() > deadline:
            return seen
        time.sleep(PAUSE)
