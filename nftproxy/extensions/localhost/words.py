"""The words of node ports at localhost, in `explain` and at the head of the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nftproxy.explanation.answer import Case, Fate, List
from nftproxy.explanation.cases import shares
from nftproxy.explanation.question import SourceKind, ToAddress
from nftproxy.explanation.words import Forwarded, Words
from nftproxy.extensions.localhost.codes import LocalhostCode
from nftproxy.extensions.localhost.forwardings import LocalhostPorts
from nftproxy.model.addresses import Protocol
from nftproxy.model.objects import Place, TrafficPolicy
from nftproxy.model.pods import Pods
from nftproxy.pipeline import Pipeline
from nftproxy.policy.choosing.verdicts import choose

HOW_REMEMBERED = "the agent remembers clients, and takes the whole node for one client"


def forwarded(pipeline: Pipeline, spot: ToAddress, pods: Pods) -> Forwarded | None:
    """The outcome of connections to a port of localhost.  None if the agent doesn't listen there."""
    wanted = pipeline.view(LocalhostPorts).by_port.get(Place(spot.address, spot.port))
    if wanted is None or spot.protocol is not Protocol.TCP:
        return None
    state = pipeline.state
    service = state.services[wanted.service]
    (port,) = (each for each in service.ports if each.node_port == spot.port and each.protocol is Protocol.TCP)
    choice = choose(state.endpoints_of(service, spot.family), port)
    name = List.LOCAL if service.external_policy is TrafficPolicy.LOCAL else List.CLUSTER
    endpoints = shares(
        state.pod_names(service.key), pods, choice, name, Counter(wanted.endpoints), is_masqueraded=lambda _: True
    )
    case = Case(
        (SourceKind.NODE.value,),
        Fate.FORWARDED,
        f"the agent listens on {spot.address} and forwards, each connection to one of these endpoints at random",
        list=name,
        list_why=f"externalTrafficPolicy {service.external_policy.value}, without exemptions at localhost",
        is_masqueraded=True,
        source_why="the agent itself connects to the endpoint",
        endpoints=tuple(endpoints),
    )
    return Forwarded(service, port.name, case, "node port at localhost", HOW_REMEMBERED)


def noted(pipeline: Pipeline) -> Iterator[str]:
    """The node ports at localhost, which no rule serves."""
    ports = pipeline.view(LocalhostPorts)
    for port, each in sorted(ports.by_port.items()):
        places = ", ".join(dict.fromkeys(map(str, each.endpoints)))
        yield f"localhost: the agent forwards {port}, of {each.service}, TCP only, to {places}"
    for service, port, protocol in ports.unserved(pipeline.state):
        what = f"{protocol.value} port {port} of {service}"
        yield f"localhost: {LocalhostCode.LOCALHOST_TCP_ONLY}: nothing serves {what}: only TCP is forwarded"


WORDS = Words(forwarded=forwarded, noted=noted)
