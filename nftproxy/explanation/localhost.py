"""Node ports at localhost, which no rule serves: the agent listens there and forwards (policy/localhost.py)."""

from __future__ import annotations

from nftproxy.explanation.answer import Case, Endpoint, Fate, List
from nftproxy.explanation.fronts import Spot
from nftproxy.explanation.question import Kind
from nftproxy.model.addresses import Protocol
from nftproxy.model.objects import Service, TrafficPolicy
from nftproxy.model.pods import Pods
from nftproxy.pipeline import Pipeline
from nftproxy.policy.endpoints import choice_for, offers
from nftproxy.policy.localhost import LocalPort


def localhost_case(pipeline: Pipeline, spot: Spot, pods: Pods) -> tuple[Service, str, Case] | None:
    """The Service that a port of localhost belongs to, its port's name, and what becomes of connections to it.

    None if the agent doesn't listen there.
    """
    wanted = pipeline.localhost_ports.by_port.get(LocalPort(spot.address, spot.port))
    if wanted is None or spot.protocol is not Protocol.TCP:
        return None
    state = pipeline.state
    service = state.services[wanted.service]
    (port,) = (each for each in service.ports if each.node_port == spot.port and each.protocol is Protocol.TCP)
    offered = offers(service, state.slices_of(service.key), spot.family)
    choice = choice_for(port, offered, state.node, state.silent_of(service))
    is_local = service.external_policy is TrafficPolicy.LOCAL
    endpoints = tuple(
        Endpoint(
            each.candidate.address,
            each.candidate.port,
            pods.name_at(each.candidate.address),
            each.candidate.is_local,
            100 * wanted.endpoints.count((each.candidate.address, each.candidate.port)) / len(wanted.endpoints),
            (each.local if is_local else each.cluster).value,
            True,
        )
        for each in choice.verdicts
    )
    case = Case(
        (Kind.NODE.value,),
        Fate.FORWARDED,
        f"the agent listens on {spot.address} and forwards, each connection to one of these endpoints at random",
        list=List.LOCAL if is_local else List.CLUSTER,
        list_why=f"externalTrafficPolicy {service.external_policy.value}, from which nobody is exempt at localhost",
        is_masqueraded=True,
        source_why="the agent itself connects to the endpoint",
        endpoints=endpoints,
    )
    return service, port.name, case
