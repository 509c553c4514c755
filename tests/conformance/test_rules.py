"""Each rule of docs/semantics.md is named when a proxy breaks it.

The proxies are nftproxy's rules in a real kernel.  Each is broken in one way: it reads another world than it is asked
to serve, or leaves something undone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from msgspec import structs
from nftproxy_conformance.lab import Outcome, Probe, obstacle
from nftproxy_conformance.lab.outcome import HEALTHY
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import Rule, rule_of
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies.focused import PLAIN_CONFIG, PLAIN_NODE
from nftproxy_conformance.strategies.probes import pings, probes
from nftproxy_conformance.strategies.worlds import world_of
from nftproxy_conformance.subjects.rendered import Rendered
from nftproxy_conformance.trials import features, restrictions
from nftproxy_conformance.trials.finding import Finding
from nftproxy_conformance.trials.trial import Difference, Trial, exactly

from nftproxy.extensions.external_addresses.fields import ExternalAddresses, Ping
from nftproxy.extensions.failover.annotations import Failover
from nftproxy.kernel.capabilities import probe as probe_capabilities
from nftproxy.model.annotations import PLAIN
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import Endpoint, Endpoints, EndpointSlice, Service, TrafficPolicy
from nftproxy.model.settings import Config
from tests.support.factories import config_of, networks, renderer, service, service_cidr, service_port, slice_of

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

Fault = Callable[[World], World]
Found = Iterable[tuple[World, Difference]]
Judge = Callable[[Trial, World], Found]

HERE, AWAY = "10.1.0.4@node-a", "10.1.1.4@node-b"
EVERYWHERE: dict[str, Any] = {
    "type": "LoadBalancer",
    "ports": ["http:80:30080/tcp"],
    "load_balancer_ips": ["203.0.113.7"],
}


class Broken(Rendered):
    """Rules of a world that a fault has changed.

    Args:
        fault: returns the world that the proxy serves in place of the real world.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(renderer(), probe_capabilities().capabilities)
        self._fault = fault

    def load(self, world: World) -> bool:
        """Load the wrong world."""
        return super().load(self._fault(world))


class EndsNone(Broken):
    """Ends no connection to an endpoint that is gone."""

    def end_gone(self) -> float:
        """Do nothing."""
        return 0.0


class EndsAll(Broken):
    """Ends every connection when any endpoint is gone."""

    def end_gone(self) -> float:
        """End connections to the endpoint that is gone, and drop the packets of the others.

        Without its entry of conntrack a connection would go on, as long as its source port stays the same.
        """
        seconds = super().end_gone()
        others = f"ct reply ip saddr {HERE.partition('@')[0]} ct state established ct direction original drop"
        self.lab.load(f"table ip others {{ chain c {{ type filter hook prerouting priority 0; {others}; }}; }}")
        return seconds


class LetsGoOn(Broken):
    """Lets flows go on that its rules no longer allow."""

    def sweep(self) -> None:
        """Do nothing."""


class AnswersAlike(Broken):
    """Answers health checks of both families alike."""

    def health(self, probe: Probe) -> Outcome:  # noqa: ARG002 -- it ignores the address
        """Say that all is well."""
        return HEALTHY


class NeverFollows(Broken):
    """Serves each change only after a restart."""

    def follow(self, after: World, happened: Sequence[Event]) -> None:  # noqa: ARG002 -- it ignores them
        """Keep the rules of before."""
        self._after = after

    def renew(self) -> bool:
        """Serve the world of after, as a new proxy does."""
        self.load(self._after)
        return True


def settings(**fields: object) -> Fault:
    """A proxy with another configuration."""
    return lambda world: world._replace(config=config_of(world.config, **fields))


def services(edit: Callable[[Service], Iterable[Service]]) -> Fault:
    """A proxy that takes each Service for other Services."""
    return lambda world: world._replace(services=tuple(made for each in world.services for made in edit(each)))


def spec(**fields: object) -> Fault:
    """A proxy for which each Service has other values in some fields."""
    return services(lambda each: [structs.replace(each, **fields)])


def endpoints(edit: Callable[[Endpoint], Iterable[Endpoint]]) -> Fault:
    """A proxy that takes each endpoint for other endpoints."""

    def edited(given: EndpointSlice) -> EndpointSlice:
        return structs.replace(given, endpoints=Endpoints.of(made for each in given.endpoints for made in edit(each)))

    return lambda world: world._replace(slices=tuple(map(edited, world.slices)))


def pod(**fields: object) -> Fault:
    """A proxy for which each endpoint has other values in some fields."""
    return endpoints(lambda each: [structs.replace(each, **fields)])


def another_port(given: Service) -> list[Service]:
    """The Service with a port of its slices that it doesn't have."""
    return [structs.replace(given, ports=(*given.ports, service_port("more:9999/tcp")))]


def with_stray(given: Service) -> list[Service]:
    """The Service, and a Service without endpoints at another port of its external address."""
    return [given, service("shop/stray", cluster_ips=["10.96.0.99"], ports=["9999"], external_ips=given.external_ips)]


def connected(trial: Trial, world: World) -> Found:
    """Every wrong connection."""
    trial.load(world)
    return [(world, each) for each in trial.differences(world, probes(world))]


def pinged(trial: Trial, world: World) -> Found:
    """Every wrong ping."""
    trial.load(world)
    return [(world, each) for each in trial.differences(world, pings(world))]


def feature(judge: Callable[[Trial, Any], Finding | None], *events: Event) -> Judge:
    """The first fault that a feature of the judge finds, in a world, or after events in it."""

    def judged(trial: Trial, world: World) -> Found:
        found = judge(trial, (world, events) if events else world)
        return [(found.worlds[-1], found.difference)] if found else []

    return judged


def named(found: Found) -> set[Rule]:
    """The rules that wrong connections break."""
    return {rule_of(Oracle(world), each.probe, each.seen, each.what) for world, each in found}


PODS = slice_of(endpoints=[HERE, AWAY])
CLOSED = config_of(
    PLAIN_CONFIG, external_addresses=ExternalAddresses.CLOSED, external_ip_cidrs=networks(["203.0.113.0/24"])
)

BROKEN: dict[Rule, tuple[list[Any], Fault]] = {
    Rule.PROTOCOLS: (
        [service(ports=["http:80/tcp", "dns:53/udp"]), slice_of(ports=["http:8080/tcp", "dns:5353/udp"])],
        services(lambda each: [structs.replace(each, ports=each.ports[:1])]),
    ),
    Rule.CAPTURED: ([service(), PODS], endpoints(lambda _: [])),
    Rule.OTHER_PORTS: ([service(), slice_of(ports=["http:8080/tcp", "more:8080/tcp"])], services(another_port)),
    Rule.UNALLOCATED: ([service_cidr("10.96.0.0/16")], lambda world: world._replace(service_cidrs=())),
    Rule.USABLE: ([service(), slice_of(endpoints=[HERE, f"{AWAY} unready"])], pod(ready=True)),
    Rule.TOPOLOGY: (
        [service(), slice_of(endpoints=[f"{HERE} zone=a", f"{AWAY} zone=b"])],
        pod(zone_hints=()),
    ),
    Rule.DRAW: (
        [service(), PODS],
        endpoints(lambda each: [each, structs.replace(each, address=f"{each.address}9")]),
    ),
    Rule.TERMINATING: (
        [service(), slice_of(endpoints=[f"{HERE} draining", f"{AWAY} draining"])],
        endpoints(lambda each: [] if each.terminating else [each]),
    ),
    Rule.POLICY: (
        [service(**EVERYWHERE, external_policy=TrafficPolicy.LOCAL), PODS],
        spec(external_policy=TrafficPolicy.CLUSTER),
    ),
    Rule.INTERNAL_POLICY: (
        [service(internal_policy=TrafficPolicy.LOCAL), PODS],
        spec(internal_policy=TrafficPolicy.CLUSTER),
    ),
    Rule.MASQUERADING: ([service(), PODS], settings(masquerade_all=True)),
    Rule.EXTERNAL_MASQUERADING: (
        [service(**EVERYWHERE), slice_of(endpoints=[HERE])],
        spec(external_policy=TrafficPolicy.LOCAL),
    ),
    Rule.HAIRPIN: ([service(), slice_of(endpoints=[HERE])], pod(node_name="node-b")),
    Rule.REJECTED: ([service(), slice_of(endpoints=[f"{HERE} unready"])], pod(ready=True)),
    Rule.DROPPED: (
        [service(internal_policy=TrafficPolicy.LOCAL), slice_of(endpoints=[AWAY])],
        spec(internal_policy=TrafficPolicy.CLUSTER),
    ),
    Rule.AFFINITY: (
        [service(affinity_timeout=60), slice_of(endpoints=[f"10.1.1.{each}@node-b" for each in range(10, 30)])],
        spec(affinity_timeout=None),
    ),
    Rule.SOURCE_RANGES: (
        [service(**EVERYWHERE, source_ranges=["198.51.101.0/24"]), PODS],
        spec(source_ranges=()),
    ),
    Rule.FORBIDDEN: (
        [service(annotations={"denied-source-ranges": "198.51.100.0/24"}), PODS],
        spec(options=PLAIN),
    ),
    Rule.NODE_PORTS: (
        [service(type="NodePort", ports=["http:80:30080/tcp"]), PODS],
        services(lambda each: [structs.replace(each, ports=(structs.replace(each.ports[0], node_port=0),))]),
    ),
}
"""A proxy that breaks each rule: the objects that it is to serve, and its fault."""


@pytest.mark.parametrize("rule", BROKEN, ids=lambda rule: rule.name)
def test_a_broken_proxy_breaks_its_rule(rule: Rule) -> None:
    """All connections that go wrong lead to the rule that the proxy breaks, and some do."""
    given, fault = BROKEN[rule]
    with Trial(Broken(fault)) as trial:
        assert named(connected(trial, world_of(PLAIN_NODE, PLAIN_CONFIG, given))) == {rule}


def served(*given: Any, **fields: Any) -> World:
    """A world of these objects, or of a plain Service."""
    return world_of(PLAIN_NODE, fields.pop("config", PLAIN_CONFIG), given or (service(), PODS), **fields)


def failing_over(failure: Failover) -> Config:
    """A configuration in which all Services have failover after a failure."""
    return config_of(PLAIN_CONFIG, failover=frozenset({failure}))


def unchanged(world: World) -> World:
    """The world itself: the proxy's fault is in what it does."""
    return world


JUDGED: dict[Rule, tuple[World, Callable[[], Broken], Judge]] = {
    Rule.PINGS: (
        served(config=config_of(PLAIN_CONFIG, ping=Ping.ANSWER)),
        functools.partial(Broken, settings(ping=Ping.REJECT)),
        pinged,
    ),
    Rule.CLOSED: (
        served(service(**EVERYWHERE), PODS, config=CLOSED),
        functools.partial(Broken, settings(external_addresses=ExternalAddresses.OPEN)),
        connected,
    ),
    Rule.UNTOUCHED: (
        served(service(external_ips=["203.0.113.7"]), PODS),
        functools.partial(Broken, services(with_stray)),
        connected,
    ),
    Rule.SILENT: (
        served(config=failing_over(Failover.SILENT), silent=(("10.1.1.4", 8080),)),
        functools.partial(Broken, lambda world: world._replace(silent=())),
        connected,
    ),
    Rule.REFUSED: (
        served(config=failing_over(Failover.REFUSED)),
        functools.partial(Broken, settings(failover=frozenset())),
        feature(features.refused),
    ),
    Rule.GONE: (
        served(service(annotations={"failover": "gone"}), PODS),
        functools.partial(EndsNone, unchanged),
        feature(features.ended, Put(slice_of(endpoints=[HERE]))),
    ),
    Rule.ESTABLISHED: (
        served(service(annotations={"failover": "gone"}), PODS),
        functools.partial(EndsAll, unchanged),
        feature(features.ended, Put(slice_of(endpoints=[HERE]))),
    ),
    Rule.FLOWS: (
        served(service(ports=["dns:53/udp"]), slice_of(endpoints=[HERE, AWAY], ports=["dns:5353/udp"])),
        functools.partial(LetsGoOn, unchanged),
        feature(restrictions.flows_followed, Put(slice_of(endpoints=[HERE], ports=["dns:5353/udp"]))),
    ),
    Rule.ASSOCIATIONS: (
        served(service(ports=["sig:3868/sctp"]), slice_of(endpoints=[HERE, AWAY], ports=["sig:3868/sctp"])),
        functools.partial(LetsGoOn, unchanged),
        feature(restrictions.flows_followed, Put(slice_of(endpoints=[HERE], ports=["sig:3868/sctp"]))),
    ),
    Rule.RESTRICTED: (
        served(service(**EVERYWHERE), PODS),
        functools.partial(LetsGoOn, unchanged),
        feature(
            restrictions.denied, Put(service(**EVERYWHERE, annotations={"denied-source-ranges": "198.51.100.0/24"}))
        ),
    ),
    Rule.HEALTH: (
        served(
            service(**EVERYWHERE, external_policy=TrafficPolicy.LOCAL, health_check_node_port=32000),
            slice_of(endpoints=[AWAY]),
        ),
        functools.partial(AnswersAlike, unchanged),
        feature(restrictions.health_checked),
    ),
    Rule.CHANGES: (
        served(),
        functools.partial(NeverFollows, unchanged),
        feature(functools.partial(features.after_changes, exactly), Put(slice_of(endpoints=[AWAY]))),
    ),
}
"""Rules for which a proxy is tried otherwise: the world, the broken proxy, and the judge."""


@pytest.mark.parametrize("rule", JUDGED, ids=lambda rule: rule.name)
def test_a_broken_proxy_breaks_a_rule_about_more_than_connections(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its judge finds leads to the rule that the proxy breaks."""
    monkeypatch.setattr(restrictions, "SECONDS", 0.0)
    world, broken, judge = JUDGED[rule]
    with Trial(broken()) as trial:
        assert named(judge(trial, world)) == {rule}


def test_each_rule_has_its_broken_proxy() -> None:
    """No rule is without a proxy that breaks it."""
    assert {*BROKEN, *JUDGED} == set(Rule)
