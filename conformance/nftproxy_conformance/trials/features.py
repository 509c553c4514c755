"""The features of a service proxy: the worlds that show each, and the connections to judge.

Only the features about masquerading judge hidden sources.  So a fault in masquerading fails these features alone.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from nftproxy.model.addresses import Address
from nftproxy.model.events import Event, Put, Removed
from nftproxy.model.objects import EndpointSlice, Service, key_of
from nftproxy_conformance.lab import DROPPED, PORT_UNREACHABLE, TCP_RESET, Lab, Outcome, Probe, is_even
from nftproxy_conformance.lab.topology import OWN
from nftproxy_conformance.specification.deviations import ANNOTATIONS
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import WRONGLY_ENDED, WRONGLY_REFUSED
from nftproxy_conformance.specification.world import View, World
from nftproxy_conformance.strategies import focused
from nftproxy_conformance.strategies.probes import pings, probes
from nftproxy_conformance.strategies.worlds import blind_worlds, changes, crowded_worlds, strangers, world_after
from nftproxy_conformance.trials.finding import Finding, differs
from nftproxy_conformance.trials.restrictions import denied, flows_followed, health_checked
from nftproxy_conformance.trials.trial import TIMES, Difference, Trial, but_for_sources, exactly

ENOUGH = 1000
"""Enough connections to show that an endpoint of ten is drawn twice as often as the rest."""

PAUSE = 0.05
"""Seconds between two looks whether connections have ended, or find other endpoints."""
DETECTION_SECONDS = 10.0
"""Seconds in which a proxy must leave out silent endpoints.  nftproxy takes one or two seconds."""

NOTHING_REACHED = "no endpoint was reached"
"""The fault if there is no connection to judge."""

Matters = Callable[[World, Probe], bool]


class Feature(NamedTuple):
    """A line of the report: `cases` to try, and `judge`, which tries a case and returns the first fault.

    Another proxy gets the cases too, with those of nftproxy's own `settings` that they are about.
    """

    name: str
    cases: st.SearchStrategy[Any]
    judge: Callable[[Trial, Any], Finding | None]
    settings: frozenset[str] = frozenset()


# The connections of a feature


def anything(_world: World, _probe: Probe) -> bool:
    """True for every connection."""
    return True


def _to_cluster_ips(world: World, probe: Probe) -> bool:
    return any(probe.address in service.cluster_ips for service in world.services)


def _to_external_ips(world: World, probe: Probe) -> bool:
    return any(probe.address in service.external_ips for service in world.services)


def _to_load_balancer_ips(world: World, probe: Probe) -> bool:
    return any(probe.address in service.load_balancer_ips for service in world.services)


def _to_node(world: World, probe: Probe) -> bool:
    return probe.address in world.interfaces


def _to_outside(world: World, probe: Probe) -> bool:
    return not _to_cluster_ips(world, probe)


def _to_others(world: World, probe: Probe) -> bool:
    return not _to_itself(world, probe)


def _to_itself(world: World, probe: Probe) -> bool:
    """True for connections from a pod to a Service that it serves itself."""
    return any(probe.source == pod.address for each in world.slices for pod in each.endpoints)


# Judges


def as_specified(matters: Matters, view: View, trial: Trial, world: World) -> Finding | None:
    """Judge connections by the oracle."""
    trial.load(world)
    return _first(trial, (world,), (probe for probe in probes(world) if matters(world, probe)), view)


def pinged(trial: Trial, world: World) -> Finding | None:
    """Judge by the oracle which pings are answered."""
    trial.load(world)
    return _first(trial, (world,), pings(world), exactly)


def _first(trial: Trial, worlds: tuple[World, ...], wanted: Iterable[Probe], view: View) -> Finding | None:
    found = trial.differences(worlds[-1], wanted, view)
    if not found:
        return None
    return Finding(*trial.traced(worlds, found[0], view))


def refused(trial: Trial, world: World) -> Finding | None:
    """Judge which refusals of endpoints reach their clients: ICMP errors, and then resets."""
    trial.load(world)
    oracle = Oracle(world)
    wanted = [probe for probe in probes(world) if probe.protocol == "tcp"]
    lab = trial.subject.lab
    with lab.unanswered():
        reached = [each for each in trial.connect(wanted) if each.endpoint and each.interface != OWN]
    refusals = [
        (outcome, heard, PORT_UNREACHABLE if by_icmp else TCP_RESET)
        for by_icmp in (True, False)
        for outcome, heard in zip(reached, lab.refuse_many(reached, by_icmp=by_icmp), strict=True)
    ]
    for outcome, heard, refusal in refusals:
        assert outcome.probe
        assert outcome.endpoint
        passes = oracle.passes_refusal(outcome.probe, outcome.endpoint)
        if passes and not heard:
            return Finding((world,), differs(outcome, refusal, DROPPED, WRONGLY_REFUSED))
        if heard and not passes and not trial.explains(ANNOTATIONS):
            return Finding((world,), differs(outcome, DROPPED, refusal, WRONGLY_REFUSED))
    return None if reached else _unreached(oracle, wanted)


def _unreached(oracle: Oracle, wanted: Iterable[Probe]) -> Finding | None:
    """The finding that no connection has reached an endpoint outside of the node's own network, if any should."""
    for probe in wanted:
        expected = oracle.expected(probe)
        if all(each.endpoint and Address(each.endpoint.ip) not in oracle.world.interfaces for each in expected):
            return Finding((oracle.world,), Difference(probe, expected, frozenset(), NOTHING_REACHED))
    return None


def silenced(trial: Trial, world: World) -> Finding | None:
    """Judge that endpoints that answer no client are left out, once clients have sent their first packets again."""
    trial.load(world._replace(silent=()))
    wanted = [probe for probe in probes(world) if probe.protocol == "tcp"]
    deadline = time.monotonic() + DETECTION_SECONDS
    trial.subject.leave_out(world)
    with trial.subject.lab.unanswered():
        while time.monotonic() < deadline:
            trial.retransmit(wanted, world.silent)
            found = trial.all_differences(world, wanted, but_for_sources)
            if not any(each.deviation in ("", ANNOTATIONS) for each in found):
                break
            time.sleep(PAUSE)
    return _first(trial, (world,), wanted, but_for_sources)


def ended(trial: Trial, case: tuple[World, Sequence[Event]]) -> Finding | None:
    """Judge which established connections end after a change of endpoints, and which go on."""
    before, happened = case
    after = world_after(before, happened)
    trial.load(before)
    lab = trial.subject.lab
    lab.forget()
    wanted = [each for each in probes(before) if each.protocol == "tcp"] * TIMES
    with lab.unanswered():
        established = lab.establish(each for each in trial.connect(wanted) if each.endpoint)
    trial.follow(after, happened)
    oracle = Oracle(after)
    due = [oracle.next_packet(each) for each in established]
    ending = [each for each, then in zip(established, due, strict=True) if then != each]
    ended_in_time = _await_ends(lab, ending, trial.subject.end_gone())
    seen = iter(lab.next_packets([each for each, then in zip(established, due, strict=True) if then == each]))
    for outcome, then in zip(established, due, strict=True):
        now = next(seen) if then == outcome else ended_in_time.get(outcome.token, outcome)
        if now != then and not (now == outcome and trial.explains(ANNOTATIONS)):
            return Finding((before, after), differs(outcome, then, now, WRONGLY_ENDED))
    if not ending:
        return Finding((before, after), Difference(wanted[0], frozenset(due), frozenset(), NOTHING_REACHED))
    return None


def _await_ends(lab: Lab, ending: Sequence[Outcome], seconds: float) -> dict[int, Outcome]:
    """Send next packets on connections until they have ended, for some seconds.  Return their outcomes by token."""
    deadline, ended_ones = time.monotonic() + seconds, dict[int, Outcome]()
    while left := [each for each in ending if each.token not in ended_ones]:
        for outcome, now in zip(left, lab.next_packets(left), strict=True):
            if now != outcome:
                ended_ones[outcome.token] = now
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE)
    return ended_ones


def evenly(trial: Trial, world: World) -> Finding | None:
    """Judge by chi-square that all endpoints of a list are drawn equally often, unless annotations ask for weights."""
    trial.load(world)
    oracle = Oracle(world)
    for probe in itertools.islice(filter(oracle.draws_evenly, _drawing(oracle)), 0, None, 150):
        expected = oracle.expected(probe)
        outcomes = trial.connect([probe] * max(ENOUGH, 40 * len(expected)))
        if not is_even(outcomes, [each.endpoint for each in expected if each.endpoint]):
            counts = ", ".join(f"{outcomes.count(each)} times {each}" for each in sorted(expected, key=repr))
            return Finding((world,), Difference(probe, expected, frozenset(outcomes), f"not drawn evenly: {counts}"))
    return None


def _drawing(oracle: Oracle) -> Iterator[Probe]:
    """The connections for which an endpoint of several is drawn."""
    return (probe for probe in probes(oracle.world) if len(oracle.expected(probe)) > 1)


def after_changes(view: View, trial: Trial, case: tuple[World, Sequence[Event]]) -> Finding | None:
    """Judge that connections after a change go as in a new world."""
    before, happened = case
    after = world_after(before, happened)
    trial.load(before)
    trial.follow(after, happened)
    return _first(trial, (before, after), probes(after), view)


def beside_strangers(view: View, trial: Trial, case: tuple[World, list[Service | EndpointSlice]]) -> Finding | None:
    """Judge that new and removed Services affect no other Service, and that clients stay with their pods."""
    world, others = case
    oracle = Oracle(world)
    tried = list(probes(world))
    sticky = [probe for probe in _drawing(oracle) if oracle.remembers(probe)][:50]
    coming, going = [Put(each) for each in others], [Removed(type(each), key_of(each)) for each in others]
    both = world_after(world, coming)
    trial.load(world)
    before = trial.connect(sticky)
    for happened, worlds in ((coming, (world, both)), (going, (both, world))):
        trial.follow(worlds[-1], happened)
        if found := trial.differences(world, tried, view):
            return Finding(worlds, found[0])
        for probe, old, new in zip(sticky, before, trial.connect(sticky), strict=True):
            if _pod(old) != _pod(new) and not trial.explains_move(world, probe, new, tried):
                return Finding(worlds, Difference(probe, frozenset({old}), frozenset({new}), "was sent to another pod"))
    return None


def _pod(outcome: Outcome) -> str:
    return outcome.endpoint.ip if outcome.endpoint else ""


def _plain(name: str, cases: st.SearchStrategy[World], matters: Matters, view: View = but_for_sources) -> Feature:
    return Feature(name, cases, functools.partial(as_specified, matters, view))


_changes = functools.partial(after_changes, but_for_sources)
_strangers = functools.partial(beside_strangers, but_for_sources)

_CLOSING = frozenset({"declared", "external_ip_cidrs"})

FEATURES = (
    _plain("ClusterIP", focused.cluster_ip_worlds, _to_cluster_ips),
    _plain("external IPs", focused.external_ip_worlds, _to_external_ips),
    _plain("load balancer IPs", focused.load_balancer_worlds, _to_load_balancer_ips),
    _plain("external IPs of the node", focused.node_address_worlds, _to_node),
    _plain("node ports, nodePortAddresses", focused.node_port_worlds, _to_node),
    _plain("IPv6 alone", focused.ipv6_worlds, anything),
    _plain("SCTP", focused.sctp_worlds, anything),
    _plain("no endpoints: rejected", focused.rejecting_worlds, anything),
    _plain("internalTrafficPolicy Local", focused.internal_local_worlds, _to_cluster_ips),
    _plain("externalTrafficPolicy Local", focused.external_local_worlds, _to_outside),
    _plain("terminating endpoints", focused.terminating_worlds, anything),
    _plain("topology hints", focused.topology_worlds, _to_cluster_ips),
    _plain("loadBalancerSourceRanges", focused.guarded_worlds, anything),
    _plain("denied and source ranges", focused.screened_worlds, anything),
    _plain("stored spellings of addresses", focused.respelt_worlds, anything),
    _plain("session affinity", focused.sticky_worlds, anything),
    _plain("masquerading, detectLocalMode", focused.masquerading_worlds, _to_others, exactly),
    _plain("hairpin", focused.hairpin_worlds, _to_itself, exactly),
    _plain("unused ClusterIPs and ports", focused.unallocated_worlds, anything),
    _plain("closed external addresses", focused.closed_worlds, _to_outside)._replace(settings=_CLOSING),
    Feature("pings", focused.pinged_worlds, pinged, _CLOSING),
    _plain("contested addresses and ports", blind_worlds, anything),
    Feature("failover from silent endpoints", focused.silenced_worlds, silenced),
    Feature("failover after refusals", focused.refusing_worlds, refused),
    Feature("connections to gone endpoints", focused.departures(), ended),
    Feature("flows after changes", focused.flow_changes(), flows_followed),
    Feature("denials under traffic", focused.restrictions, denied),
    Feature("health checks by family", focused.checked_worlds, health_checked),
    Feature("uniform choice", crowded_worlds, evenly),
    Feature("changes", changes, _changes),
    Feature(
        "changes elsewhere",
        st.tuples(focused.with_long_memory(blind_worlds), strangers),
        _strangers,
    ),
    _plain("whole clusters", blind_worlds, anything, exactly),
)
