"""Answers a question about connections: where they go on this node, why, and what the kernel must hold for it.

Nothing here decides anything.  Whose a place is comes from the claims, the endpoints and their reasons from the choice,
and what becomes of a packet from the facts that the rules are rendered from: an explanation can't drift from the rules.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Generator, Iterator, Sequence

import msgspec

from nftproxy.explanation.affinity import affinity_of
from nftproxy.explanation.answer import Affinity, Case, Explanation, Place
from nftproxy.explanation.cases import merged, served_case, unserved_case
from nftproxy.explanation.clients import Client, clients
from nftproxy.explanation.expected import expected_at
from nftproxy.explanation.fronts import (
    Served,
    Spot,
    health_check_at,
    kind_of_front,
    losers_at,
    owner,
    served_at,
    serves_node_ports,
    spots_of_node,
    spots_of_service,
)
from nftproxy.explanation.localhost import localhost_case
from nftproxy.explanation.question import Kind, Question, Source, To, ToAddress, ToNode, ToService
from nftproxy.model.addresses import Address, Family, Protocol, family_of, is_loopback
from nftproxy.model.codes import Code
from nftproxy.model.objects import ObjectKey, Service, TrafficDistribution
from nftproxy.model.pods import NO_PODS, Pods
from nftproxy.model.steps import finish
from nftproxy.pipeline import Pipeline
from nftproxy.policy.endpoints import gather, offers, why_not_near
from nftproxy.policy.fronts import restricting_ranges

NAMES_TO_COMPARE = 200
"""Names of Services that a name nobody has is compared with, which takes the agent some milliseconds."""
MAX_PLACES = 100
"""Places that one answer has: a Service may have 10,000 (policy/limits.py), and nobody reads these."""


def explain(pipeline: Pipeline, question: Question, pods: Pods = NO_PODS) -> Explanation:
    """What becomes of the connections that a question is about, on the pipeline's node.

    Args:
        pipeline: has seen the cluster.
        question: to where, and from whom.
        pods: what is known of pods: for a question that names one, and to name endpoints.
    """
    return finish(explaining(pipeline, question, pods))


def explaining(pipeline: Pipeline, question: Question, pods: Pods = NO_PODS) -> Generator[None, None, Explanation]:
    """As `explain`, stopping after each place, so that others may have their turn."""
    spots = list(dict.fromkeys(_spots(pipeline, question.to)))
    places = []
    for spot in spots[:MAX_PLACES]:
        places.append(_place(pipeline, spot, question.source, pods))
        yield
    notes = list(_notes(pipeline, question.to, found=bool(spots)))
    if question.source and question.source.pod and question.source.pod not in pods.addresses:
        notes.append(f"the address of pod {question.source.pod} is not known")
    if len(spots) > MAX_PLACES:
        notes.append(f"{len(spots) - MAX_PLACES} more addresses and ports are left out: ask for one port")
    source = str(question.source) if question.source else ""
    return Explanation(str(question.to), source, pipeline.state.node.name, tuple(places), tuple(notes))


def _spots(pipeline: Pipeline, to: To) -> Iterator[Spot]:
    match to:
        case ToAddress():
            spot = Spot(to.address, to.protocol, to.port)
            yield from [spot] if spot.family in pipeline.generations else []
        case ToNode():
            yield from spots_of_node(pipeline, to)
        case ToService():
            service = pipeline.state.services.get(to.service)
            yield from spots_of_service(pipeline, service, to) if service else ()


def _notes(pipeline: Pipeline, to: To, *, found: bool) -> Iterator[str]:
    """Why there is nothing to explain, and who isn't to be seen in the rules."""
    state = pipeline.state
    if isinstance(to, ToService):
        if to.service in state.excessive:
            yield f"{Code.LIMIT_EXCEEDED}: Service {to.service} is quarantined: {state.excessive[to.service]}"
        elif to.service not in state.services:
            yield f"this proxy knows no Service {to.service}{_alike(state.services, to.service)}"
        elif not found:
            yield f"Service {to.service} has no such port"
    elif not found:
        yield "there are no rules for this address's family" if isinstance(to, ToAddress) else "the node has no address"


def _alike(services: Collection[ObjectKey], wanted: ObjectKey) -> str:
    """Which Service may be meant instead: one of this name in another namespace, or of a similar name in this one."""
    near = itertools.islice((key.name for key in services if key.namespace == wanted.namespace), NAMES_TO_COMPARE)
    meant = [ObjectKey(wanted.namespace, name) for name in difflib.get_close_matches(wanted.name, near, 1)]
    meant += sorted(key for key in services if key.name == wanted.name)[:1]
    return f"; is svc/{meant[0]} meant?" if meant else ""


def _place(pipeline: Pipeline, spot: Spot, source: Source | None, pods: Pods) -> Place:
    """All about one place: what any has, then what depends on who serves it."""
    served = served_at(pipeline, spot)
    asking = [client for client in clients(pipeline, spot.family, source, pods) if _can_come(client, spot.address)]
    bare = Place(
        spot.address,
        spot.family,
        spot.protocol,
        spot.port,
        losers=tuple(losers_at(pipeline, spot)),
        notes=tuple(_quarantined(pipeline, spot)),
        expected=expected_at(pipeline, spot, served),
    )
    if served:
        return _served(bare, pipeline, spot, served, asking, pods)
    forwarded = localhost_case(pipeline, spot, pods)
    if forwarded and asking:
        return _forwarded(bare, *forwarded)
    cases = merged(unserved_case(pipeline, spot, client) for client in asking)
    return _unserved(msgspec.structs.replace(bare, cases=cases), pipeline, spot)


def _can_come(client: Client, address: Address) -> bool:
    """Whether such a client can send anything there: to a loopback address the node itself alone."""
    return client.kind is Kind.NODE or not is_loopback(address)


def _served(
    place: Place, pipeline: Pipeline, spot: Spot, served: Served, asking: Sequence[Client], pods: Pods
) -> Place:
    service, reach = served.service, served.reach
    field = "externalTrafficPolicy" if reach.is_external else "internalTrafficPolicy"
    screen = served.facts.screen
    guarded = served.facts.guarded + (screen.guarded if screen else ())
    is_guarded = any(front == reach.front for front, _ in guarded)
    ranges = restricting_ranges(service, spot.family) if is_guarded else []
    cases = [served_case(pipeline, spot, served, client, pods) for client in asking]
    return msgspec.structs.replace(
        place,
        front=kind_of_front(served),
        owner=served.owner,
        policy=f"{field} {reach.policy.value}",
        cases=merged(cases),
        source_ranges=tuple(map(str, ranges)),
        denied_ranges=tuple(str(each) for each in service.options.denied_ranges if family_of(each) is spot.family),
        limits=tuple(_limits(service)),
        affinity=affinity_of(pipeline, spot, served, asking),
        notes=(
            *place.notes,
            *_topology(pipeline, served, spot.family),
            *_silence(pipeline, served),
            *_hairpin(served, asking, cases),
        ),
    )


def _limits(service: Service) -> Iterator[str]:
    """What annotations limit each client to."""
    if rate := service.options.client_rate:
        yield f"{rate.per_second} new connections per second, {rate.burst} in a row"
    if most := service.options.client_connections:
        yield f"{most} connections at a time"


def _forwarded(place: Place, service: Service, port: str, case: Case) -> Place:
    timeout, how = service.affinity_timeout, "the agent remembers, and takes all of the node for one client"
    return msgspec.structs.replace(
        place,
        front="node port at localhost",
        owner=owner(service.key, port),
        policy=f"externalTrafficPolicy {service.external_policy.value}",
        cases=(case,),
        affinity=None if timeout is None else Affinity(timeout, how),
    )


def _unserved(place: Place, pipeline: Pipeline, spot: Spot) -> Place:
    service = health_check_at(pipeline, spot) if serves_node_ports(pipeline, spot.address) else None
    if not service:
        return msgspec.structs.replace(place, notes=(*place.notes, *_other_protocols(pipeline, spot)))
    check = pipeline.health_checks.by_port.get(spot.port)
    count = check.local_endpoints if check else 0
    status = "200, while the proxy is healthy" if count else "503"
    note = f"the agent answers load balancers here: ready endpoints on this node: {count}, so the status is {status}"
    return msgspec.structs.replace(
        place, front="health-check node port", owner=owner(service.key, ""), notes=(*place.notes, note)
    )


def _other_protocols(pipeline: Pipeline, spot: Spot) -> Iterator[str]:
    """Who is asking for the wrong protocol."""
    for protocol in Protocol:
        served = served_at(pipeline, spot._replace(protocol=protocol))
        if served:
            yield f"by {protocol.value.upper()} this is Service {served.owner}: ask for {spot.port}/{protocol.value}"


def _quarantined(pipeline: Pipeline, spot: Spot) -> Iterator[str]:
    """The Services that would be reached here if they weren't quarantined."""
    state, withheld = pipeline.state, pipeline.withheld[spot.family]
    claims = [spot.claim, *([spot.node_claim] if serves_node_ports(pipeline, spot.address) else [])]
    for key in dict.fromkeys(filter(None, map(state.claims.winner, claims))):
        if key in withheld:
            reason = withheld[key] or "the kernel refuses its rules"
            what = f"Service {key} has this place but is quarantined, so it has no rules of this family"
            yield f"{Code.QUARANTINED}: {what}: {reason}"
    for key, reason in sorted(state.excessive.items()):
        if state.asks_for(key, spot.address):
            what = f"Service {key} asks for this address but is quarantined, so it has nothing"
            yield f"{Code.LIMIT_EXCEEDED}: {what}: {reason}"


def _hairpin(served: Served, asking: Sequence[Client], cases: Sequence[Case]) -> Iterator[str]:
    """What is particular about one pod, where the question is about pods as such."""
    kept = {
        client.kind for client, case in zip(asking, cases, strict=True) if not (client.is_one or case.is_masqueraded)
    }
    if served.facts.hairpins and Kind.POD in kept:
        yield "a pod of this node that reaches itself is masqueraded, or it would not recognise its own answer"


def _silence(pipeline: Pipeline, served: Served) -> Iterator[str]:
    """That a Service leaves out who doesn't answer, which only the agent of a node knows."""
    if served.service.key in pipeline.state.watched and served.port.protocol is Protocol.TCP:
        yield "endpoints that don't answer this node are left out, up to half of a list, until they answer again"


def _topology(pipeline: Pipeline, served: Served, family: Family) -> Iterator[str]:
    """Why a Service that asks for near endpoints uses all of them."""
    state, distribution = pipeline.state, served.service.traffic_distribution
    offered = offers(served.service, state.slices_of(served.service.key), family)
    why = why_not_near(gather(offered, served.port, state.node.name), state.node)
    if why and distribution is not TrafficDistribution.NONE:
        wish = f"trafficDistribution {distribution.value}"
        yield f"{Code.TOPOLOGY_UNUSED}: all endpoints are used in spite of {wish}: {why}"
