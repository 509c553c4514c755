"""Answer a question about connections: the outcome on this node, the reasons, and the elements expected in the kernel.

Nothing here decides anything.  The owner of a place comes from the claims, the endpoints and their reasons come from
the choice, and the outcome comes from the facts of the templates.  So an explanation can't drift from the rules.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence

import msgspec

from nftproxy.explanation.answer import Affinity, Case, ExplainedPlace, Explanation, List
from nftproxy.explanation.cases import merged, served_case, unserved_case
from nftproxy.explanation.clients import Client, addresses_of, assumption, clients
from nftproxy.explanation.expected import affinity_of, base_chains, expected_at
from nftproxy.explanation.explained_extension import words_of
from nftproxy.explanation.ownership import (
    Served,
    health_check_at,
    kind_of_front,
    losers_at,
    owner,
    served_at,
    serves_node_ports,
    service_with_node_port,
    spots_of_node,
    spots_of_service,
)
from nftproxy.explanation.question import Question, Source, SourceKind, To, ToAddress, ToNode, ToService
from nftproxy.explanation.shared_addresses import on_several_nodes
from nftproxy.explanation.words import Forwarded
from nftproxy.model.addresses import Address, Family, Protocol, is_loopback, port_text
from nftproxy.model.codes import Code
from nftproxy.model.objects import ObjectKey, Service, TrafficDistribution
from nftproxy.model.pods import NO_PODS, Pods
from nftproxy.model.settings import PROXY_NAME
from nftproxy.model.steps import finish
from nftproxy.pipeline import Pipeline
from nftproxy.policy.choosing.choice import endpoints_left_out, why_not_near
from nftproxy.policy.fronts import restricting_ranges
from nftproxy.policy.unserved import dead_ends, without_address

NAMES_TO_COMPARE = 200
"""Names of Services that an unknown name is compared with, which takes the agent some milliseconds."""
MAX_PLACES = 100
"""The most places of an answer: a Service may have 10,000 (policy/limits.py), too many to read."""

HAIRPIN = "a pod of this node that reaches itself is masqueraded, or it would not recognise its own answer"
"""The note about a place with an endpoint on the node, so about some nodes and not about others."""


def explain(pipeline: Pipeline, question: Question, pods: Pods = NO_PODS) -> Explanation:
    """Explain the connections that a question is about, on the pipeline's node.

    Args:
        pipeline: has seen the cluster.
        question: the destination and the source.
        pods: pods by name and address, for a question that names a pod and for the names of endpoints.
    """
    return finish(explaining(pipeline, question, pods))


def explaining(pipeline: Pipeline, question: Question, pods: Pods = NO_PODS) -> Generator[None, None, Explanation]:
    """As `explain`, yielding after each place, so that the caller can do other work in between."""
    spots = list(dict.fromkeys(_spots(pipeline, question.to)))
    places = []
    for spot in spots[:MAX_PLACES]:
        places.append(_place(pipeline, spot, question.source, pods))
        yield
    notes = [*_unaddressed(pipeline, question.to), *_notes(pipeline, question.to, found=bool(spots))]
    for each in words_of(pipeline):
        notes += each.remarks_on_question(pipeline, spots)
    owners = filter(None, [place.owner for place in places])
    for key in dict.fromkeys(ObjectKey(each.namespace, each.name) for each in owners):
        notes += yield from on_several_nodes(tuple(pipeline.state.slices_of(key)))
    is_known = not _names_unknown(pipeline, question.to)
    pod = question.source.pod if question.source else None
    if pod and not addresses_of(pipeline.state, pod, pods):
        notes.append(f"the address of pod {pod} is not known: no EndpointSlice refers to it")
        is_known = False
    if assumed := assumption(pipeline, question.source):
        notes.append(assumed)
    if len(spots) > MAX_PLACES:
        notes.append(f"{len(spots) - MAX_PLACES} more addresses and ports are left out: ask for one port")
    source, node = str(question.source or ""), pipeline.state.node.name
    return Explanation(str(question.to), source, node, tuple(places), tuple(notes), base_chains(pipeline), is_known)


def _spots(pipeline: Pipeline, to: To) -> Iterator[ToAddress]:
    match to:
        case ToAddress():
            yield from [to] if to.family in pipeline.generations else []
        case ToNode():
            yield from spots_of_node(pipeline, to)
        case ToService():
            service = pipeline.state.services.get(to.service)
            yield from spots_of_service(pipeline, service, to) if service else ()


def _unaddressed(pipeline: Pipeline, to: To) -> Iterator[str]:
    """Why node ports of a Service aren't served at any address of this node."""
    match to:
        case ToService():
            service = pipeline.state.services.get(to.service)
        case ToNode():
            service = service_with_node_port(pipeline.state, to.protocol, to.port)
        case ToAddress():  # said at the address
            service = None
    if service:
        yield from without_address(pipeline.state, pipeline.settings.config, service)


def _notes(pipeline: Pipeline, to: To, *, found: bool) -> Iterator[str]:
    """Why there is nothing to explain, or what holds for all of it."""
    state = pipeline.state
    if isinstance(to, ToService):
        if to.service in state.excessive:
            excess = state.excessive[to.service]
            yield f"{excess.code}: Service {to.service} is quarantined: {excess.reason}"
        elif to.service in state.ignored:
            reason = state.ignored[to.service].reason
            yield f"this proxy doesn't serve Service {to.service}: {reason}{_instead(reason)}"
        elif to.service not in state.services:
            label = pipeline.settings.config.service_proxy_name
            only = f" with the label {PROXY_NAME}={label}" if label else ""
            yield f"this proxy knows no Service {to.service}{only}{_alike(state.services, to.service)}"
        elif not found and not _has_port(state.services[to.service], to):
            yield f"Service {to.service} has no such port"
        elif not found and not state.services[to.service].ports:
            yield f"Service {to.service} has no ports, so connections to its ClusterIP are rejected"
        elif not found:
            yield f"there are no rules for the families of Service {to.service}"
    elif not found and isinstance(to, ToAddress):
        yield "there are no rules for this address's family"
    elif not found:
        why = f"the cluster has no Node {state.node.name}, so its addresses are unknown"
        yield "the node has no address" if state.has_node else why


def _names_unknown(pipeline: Pipeline, to: To) -> bool:
    """True if a question names a Service that isn't there, or a port that its Service doesn't have."""
    state = pipeline.state
    if not isinstance(to, ToService) or to.service in state.ignored or to.service in state.excessive:
        return False
    return to.service not in state.services or not _has_port(state.services[to.service], to)


def _has_port(service: Service, to: ToService) -> bool:
    """True if the question names a port of the Service, or none."""
    names_none = to.port == "" and to.protocol is None
    return names_none or any(
        to.port in ("", port.name, str(port.port)) and to.protocol in (None, port.protocol) for port in service.ports
    )


def _instead(reason: str) -> str:
    """Say how clients reach a Service that has no address, by the reason for which no proxy serves it."""
    if "headless" in reason:
        return "; its name resolves to the addresses of its pods, which clients connect to by themselves"
    return "; its name resolves to another name" if "ExternalName" in reason else ""


def _alike(services: Collection[ObjectKey], wanted: ObjectKey) -> str:
    """Suggest a Service: the same name in another namespace, or a similar name in this namespace."""
    near = itertools.islice((key.name for key in services if key.namespace == wanted.namespace), NAMES_TO_COMPARE)
    meant = [ObjectKey(wanted.namespace, name) for name in difflib.get_close_matches(wanted.name, near, 1)]
    meant += sorted(key for key in services if key.name == wanted.name)[:1]
    return f"; is svc/{meant[0]} meant?" if meant else ""


def _place(pipeline: Pipeline, spot: ToAddress, source: Source | None, pods: Pods) -> ExplainedPlace:
    """Explain the connections to an address and port."""
    served = served_at(pipeline, spot)
    asking = [client for client in clients(pipeline, spot.family, source, pods) if _can_come(client, spot.address)]
    bare = ExplainedPlace(
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
    forwarded = next(filter(None, (each.forwarded(pipeline, spot, pods) for each in words_of(pipeline))), None)
    if forwarded and asking:
        return _forwarded(bare, forwarded)
    cases = merged(unserved_case(pipeline, spot, client) for client in asking)
    return _unserved(msgspec.structs.replace(bare, cases=cases), pipeline, spot)


def _can_come(client: Client, address: Address) -> bool:
    """True if a client can send packets to an address: only the node itself can to a loopback address."""
    return client.kind is SourceKind.NODE or not is_loopback(address)


def _served(
    place: ExplainedPlace, pipeline: Pipeline, spot: ToAddress, served: Served, asking: Sequence[Client], pods: Pods
) -> ExplainedPlace:
    service, reach = served.service, served.reach
    field = "externalTrafficPolicy" if reach.is_external else "internalTrafficPolicy"
    added = [each.restrictions(spot, served) for each in words_of(pipeline)]
    is_guarded = any(front == reach.front for front, _ in served.facts.guarded) or any(
        each.is_guarded for each in added
    )
    ranges = restricting_ranges(service, spot.family) if is_guarded else []
    cases = [served_case(pipeline, spot, served, client, pods) for client in asking]
    return msgspec.structs.replace(
        place,
        front=kind_of_front(served),
        owner=served.owner,
        policy=f"{field} {reach.policy.value}",
        cases=merged(cases),
        source_ranges=tuple(map(str, ranges)),
        restrictions=tuple(one for each in added for one in each.said),
        affinity=affinity_of(pipeline, spot, served, asking),
        notes=(
            *place.notes,
            *filter(None, [endpoints_left_out(pipeline.state.slices_of(service.key), spot.family, served.port)]),
            *filter(None, [dead_ends(pipeline.state, served.port, served.choice)]),
            *_topology(pipeline, served, spot.family, cases),
            *_hairpin(served, asking, cases),
            *(note for each in words_of(pipeline) for note in each.remarks(pipeline, spot, served, asking)),
        ),
    )


def _forwarded(place: ExplainedPlace, found: Forwarded) -> ExplainedPlace:
    service, timeout = found.service, found.service.affinity_timeout
    return msgspec.structs.replace(
        place,
        front=found.front,
        owner=owner(service.key, found.port),
        policy=f"externalTrafficPolicy {service.external_policy.value}",
        cases=(found.case,),
        affinity=None if timeout is None else Affinity(timeout, found.how_remembered),
    )


def _unserved(place: ExplainedPlace, pipeline: Pipeline, spot: ToAddress) -> ExplainedPlace:
    service = health_check_at(pipeline, spot) if serves_node_ports(pipeline, spot.address) else None
    if not service:
        return msgspec.structs.replace(place, notes=(*place.notes, *_other_protocols(pipeline, spot)))
    check = pipeline.health_checks.by_port.get(spot.port)
    count = check.local_endpoints.get(spot.family, 0) if check else 0
    status = "200, while the proxy is healthy" if count else "503"
    note = f"the agent answers load balancers here: ready endpoints on this node: {count}, so the status is {status}"
    if spot.port in pipeline.health_checks.taken:
        code = Code.HEALTH_CHECK_PORT_TAKEN
        note = f"{code}: the agent can't open this port at some address, where load balancers get no answer of ours"
    return msgspec.structs.replace(
        place, front="health-check node port", owner=owner(service.key, ""), notes=(*place.notes, note)
    )


def _other_protocols(pipeline: Pipeline, spot: ToAddress) -> Iterator[str]:
    """A remark if a Service has this address and port with another protocol."""
    for protocol in Protocol:
        served = served_at(pipeline, msgspec.structs.replace(spot, protocol=protocol))
        if served:
            port = port_text(spot.port, protocol.value)
            yield f"over {protocol.value.upper()} this is Service {served.owner}: ask for {port}"


def _quarantined(pipeline: Pipeline, spot: ToAddress) -> Iterator[str]:
    """The quarantined Services that claim this place."""
    state, withheld = pipeline.state, pipeline.withheld[spot.family]
    claims = [spot.claim, *([spot.node_claim] if serves_node_ports(pipeline, spot.address) else [])]
    for key in dict.fromkeys(filter(None, map(state.claims.winner, claims))):
        if key in withheld:
            reason = withheld[key] or "the kernel refuses its rules"
            what = f"Service {key} has this place but is quarantined, so it has no rules of this family"
            yield f"{Code.QUARANTINED}: {what}: {reason}"
    for key, excess in sorted(state.excessive.items()):
        if state.asks_for(key, spot.address):
            what = f"Service {key} asks for this address but is quarantined, so it isn't served"
            yield f"{excess.code}: {what}: {excess.reason}"


def _hairpin(served: Served, asking: Sequence[Client], cases: Sequence[Case]) -> Iterator[str]:
    """A remark about pods that reach themselves, where the question is about pods in general."""
    kept = {
        client.kind for client, case in zip(asking, cases, strict=True) if not (client.is_one or case.is_masqueraded)
    }
    if served.facts.hairpins and SourceKind.POD in kept:
        yield HAIRPIN


def _topology(pipeline: Pipeline, served: Served, family: Family, cases: Iterable[Case]) -> Iterator[str]:
    """Why a Service uses all endpoints although it asks for near endpoints.  Policy Local uses the node's own."""
    if all(case.list is List.LOCAL for case in cases):
        return
    distribution = served.service.traffic_distribution
    why = why_not_near(pipeline.state.endpoints_of(served.service, family), served.port)
    if why and distribution is not TrafficDistribution.NONE:
        wish = f"trafficDistribution {distribution.value}"
        yield f"{Code.TOPOLOGY_UNUSED}: all endpoints are used in spite of {wish}: {why}"
