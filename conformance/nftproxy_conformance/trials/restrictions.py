"""Judges of changes under traffic: flows, restrictions of clients, and health checks of an address family."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import NamedTuple

from nftproxy.model.addresses import Protocol
from nftproxy.model.events import Event
from nftproxy_conformance.lab import DROPPED, TCP_RESET, Kind, Lab, Outcome, Probe
from nftproxy_conformance.lab.outcome import HEALTHY, UNHEALTHY
from nftproxy_conformance.lab.topology import Origin
from nftproxy_conformance.specification.deviations import ASSOCIATIONS, FLOWS, RESTRICTIONS
from nftproxy_conformance.specification.flows import stays
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import WRONGLY_ENDED, WRONGLY_FOLLOWED, WRONGLY_GOING_ON, WRONGLY_HEALTHY
from nftproxy_conformance.specification.world import Destination, World
from nftproxy_conformance.strategies.probes import probes
from nftproxy_conformance.strategies.worlds import world_after
from nftproxy_conformance.trials.finding import Finding, differs
from nftproxy_conformance.trials.trial import Difference, Trial

SECONDS = 10.0
"""Seconds in which a proxy must stop flows, or change its answer to a health check.  nftproxy takes less than one."""
_LASTING = {f"netfilter/nf_conntrack_sctp_timeout_{state}": "60" for state in ("closed", "cookie_wait")}
"""Connection tracking forgets an unanswered association after 3 or 10 s, in which a proxy may apply a change."""
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


def flows_followed(trial: Trial, case: tuple[World, Sequence[Event]]) -> Finding | None:
    """Judge which flows of UDP and SCTP stay at their endpoint after a change, and which are translated anew."""
    before, happened = case
    after = world_after(before, happened)
    trial.load(before)
    lab = trial.subject.lab
    lab.forget()
    with contextlib.suppress(OSError):  # a kernel that tracks no associations keeps them longer
        lab.node.sysctl(_LASTING)
    wanted = [each for each in probes(before) if each.protocol in ("udp", "sctp")]
    flows = [each for each in trial.connect(wanted) if each.endpoint]
    trial.follow(after, happened)
    oracle = Oracle(after)
    wrong = _await_moves(trial, oracle, flows)
    unexplained = [each for each in wrong if each.was != each.now or not trial.explains(each.deviation)]
    if not unexplained:
        return None
    found = unexplained[0]
    return Finding((before, after), Difference(found.probe, found.allowed, frozenset({found.now}), WRONGLY_FOLLOWED))


class _Wrong(NamedTuple):
    """A flow whose next packet went the wrong way, and the right ways."""

    probe: Probe
    was: Outcome
    now: Outcome
    allowed: frozenset[Outcome]

    @property
    def deviation(self) -> str:
        """The number of the deviation that lets it stay."""
        return ASSOCIATIONS if self.probe.protocol == "sctp" else FLOWS


def _await_moves(trial: Trial, oracle: Oracle, flows: Sequence[Outcome]) -> list[_Wrong]:
    """Send the next packet of flows until each goes where it may, for some seconds.  Return the flows that don't."""
    deadline = time.monotonic() + SECONDS
    left = list(flows)
    while True:
        tried = [(each, each.probe) for each in left if each.probe]
        nows = trial.connect([probe for _, probe in tried])
        wrong = [
            _Wrong(probe, was, now, allowed)
            for (was, probe), now in zip(tried, nows, strict=True)
            if now not in (allowed := frozenset({was}) if stays(oracle, was) else oracle.expected(probe))
        ]
        if not wrong or time.monotonic() > deadline:
            return wrong
        left = [each.was for each in wrong]
        time.sleep(PAUSE)


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
    for place in (
        Destination(address, Protocol.TCP, each) for address in sorted(world.interfaces) for each in sorted(ports)
    ):
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
