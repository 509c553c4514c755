"""What a service proxy does, feature by feature: the worlds that show each, and the connections that are about it.

Only the features about masquerading judge whether a source was hidden: a fault in it fails these, and not every
feature.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from nftproxy.conformance import focused_worlds
from nftproxy.conformance.oracle import Oracle, View, World
from nftproxy.conformance.probes import probes
from nftproxy.conformance.trial import Difference, Trial, but_for_sources, exactly
from nftproxy.conformance.worlds import blind_worlds, changes, crowded_worlds, strangers, world_after
from nftproxy.lab import Outcome, Probe, is_even
from nftproxy.model.events import Event, Put, Removed, key_of
from nftproxy.model.objects import EndpointSlice, Service

ENOUGH = 1000
"""Connections in which it shows that one of ten endpoints is drawn twice as often as the others."""

Matters = Callable[[World, Probe], bool]


class Finding(NamedTuple):
    """Connections that went wrong, and the worlds that it takes: one, or one that became the other."""

    worlds: tuple[World, ...]
    difference: Difference


class Feature(NamedTuple):
    """One line of the report: `cases` to try, and `judge`, which tries one and finds the first thing wrong, if any."""

    name: str
    cases: st.SearchStrategy[Any]
    judge: Callable[[Trial, Any], Finding | None]


# Which connections a feature is about


def anything(_world: World, _probe: Probe) -> bool:
    """Every connection."""
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
    """What a pod sends to a Service that it serves itself."""
    return any(probe.source == pod.address for each in world.slices for pod in each.endpoints)


# How a world is judged


def as_specified(matters: Matters, view: View, trial: Trial, world: World) -> Finding | None:
    """Connections become what the oracle says."""
    trial.load(world)
    return _first(trial, (world,), matters, view)


def _first(trial: Trial, worlds: tuple[World, ...], matters: Matters, view: View) -> Finding | None:
    wanted = [probe for probe in probes(worlds[-1]) if matters(worlds[-1], probe)]
    found = trial.differences(worlds[-1], wanted, view)
    if not found:
        return None
    return Finding(*trial.traced(worlds, found[0], view))


def evenly(trial: Trial, world: World) -> Finding | None:
    """Every endpoint of a list is drawn as often as any other, as chi-square judges, if nothing else is asked for."""
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
    """The connections worth trying that one of several endpoints is drawn for."""
    return (probe for probe in probes(oracle.world) if len(oracle.expected(probe)) > 1)


def after_changes(view: View, trial: Trial, case: tuple[World, Sequence[Event]]) -> Finding | None:
    """After a transaction connections go as in a world that always was like this."""
    before, happened = case
    after = world_after(before, happened)
    trial.load(before)
    trial.follow(after, happened)
    return _first(trial, (before, after), anything, view)


def beside_strangers(view: View, trial: Trial, case: tuple[World, list[Service | EndpointSlice]]) -> Finding | None:
    """Services that come and go change nothing for others, and clients stay with their pods."""
    world, others = case
    oracle = Oracle(world)
    sticky = [probe for probe in _drawing(oracle) if oracle.remembers(probe)][:50]
    coming, going = [Put(each) for each in others], [Removed(type(each), key_of(each)) for each in others]
    both = world_after(world, coming)
    trial.load(world)
    before = trial.connect(sticky)
    for happened, worlds in ((coming, (world, both)), (going, (both, world))):
        trial.follow(worlds[-1], happened)
        if found := trial.differences(world, probes(world), view):
            return Finding(worlds, found[0])
        for probe, old, new in zip(sticky, before, trial.connect(sticky), strict=True):
            if _pod(old) != _pod(new):
                return Finding(worlds, Difference(probe, frozenset({old}), frozenset({new}), "was sent to another pod"))
    return None


def _pod(outcome: Outcome) -> str:
    return outcome.endpoint.ip if outcome.endpoint else ""


def _plain(name: str, cases: st.SearchStrategy[World], matters: Matters, view: View = but_for_sources) -> Feature:
    return Feature(name, cases, functools.partial(as_specified, matters, view))


_changes = functools.partial(after_changes, but_for_sources)
_strangers = functools.partial(beside_strangers, but_for_sources)

FEATURES = (
    _plain("ClusterIP", focused_worlds.cluster_ip_worlds, _to_cluster_ips),
    _plain("external IPs", focused_worlds.external_ip_worlds, _to_external_ips),
    _plain("load balancer IPs", focused_worlds.load_balancer_worlds, _to_load_balancer_ips),
    _plain("external IPs of the node", focused_worlds.node_address_worlds, _to_node),
    _plain("node ports, nodePortAddresses", focused_worlds.node_port_worlds, _to_node),
    _plain("IPv6 alone", focused_worlds.ipv6_worlds, anything),
    _plain("SCTP", focused_worlds.sctp_worlds, anything),
    _plain("no endpoints: rejected", focused_worlds.rejecting_worlds, anything),
    _plain("internalTrafficPolicy Local", focused_worlds.internal_local_worlds, _to_cluster_ips),
    _plain("externalTrafficPolicy Local", focused_worlds.external_local_worlds, _to_outside),
    _plain("terminating endpoints", focused_worlds.terminating_worlds, anything),
    _plain("topology hints", focused_worlds.topology_worlds, _to_cluster_ips),
    _plain("loadBalancerSourceRanges", focused_worlds.guarded_worlds, anything),
    _plain("denied and source ranges", focused_worlds.screened_worlds, anything),
    _plain("session affinity", focused_worlds.sticky_worlds, anything),
    _plain("masquerading, detectLocalMode", focused_worlds.masquerading_worlds, _to_others, exactly),
    _plain("hairpin", focused_worlds.hairpin_worlds, _to_itself, exactly),
    _plain("unused ClusterIPs and ports", focused_worlds.unallocated_worlds, anything),
    _plain("contested addresses and ports", blind_worlds, anything),
    Feature("uniform choice", crowded_worlds, evenly),
    Feature("changes", changes, _changes),
    Feature(
        "changes elsewhere",
        st.tuples(blind_worlds, strangers),
        _strangers,
    ),
    _plain("whole clusters", blind_worlds, anything, exactly),
)
