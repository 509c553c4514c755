"""Which clients an address answers when they ping it, by the elements of its family's rules (pings.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_network

from nftproxy.explanation.clients import Client, is_local
from nftproxy.explanation.ownership import Served
from nftproxy.explanation.question import SourceKind, ToAddress
from nftproxy.extensions.external_addresses.fields import answers_pings
from nftproxy.extensions.external_addresses.rules import answering_addresses
from nftproxy.model.addresses import Network
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import NODE
from nftproxy.policy.ranges import INSIDE
from nftproxy.rules.ruleset import Element


def pings_said(pipeline: Pipeline, spot: ToAddress, served: Served, asking: Sequence[Client]) -> Iterator[str]:
    """A remark about the clients whose pings a Service's address answers, if the configuration asks for answers.

    This looks at all elements of the family.
    """
    state, address = pipeline.state, served.reach.claim.address
    is_left_alone = address == NODE or address in state.own_addresses
    if served.reach.is_external and not is_left_alone:
        is_left_alone = not state.claims.is_services_alone(address)
    if is_left_alone or not answers_pings(pipeline.settings.config):
        return
    lines = pipeline.generations[spot.family].lines_of("pings")
    keys = [Element.of(each).key.split(" . ") for each in lines]
    can_answer = bool(answering_addresses(state, spot.family))
    rows = [(network, int(length)) for each, network, length in keys if can_answer and each == address]
    said = [f"{client}: {_answer(pipeline, spot, client, rows)}" for client in asking]
    yield f"pings from {'; '.join(said)}"


def _answer(pipeline: Pipeline, spot: ToAddress, client: Client, rows: Sequence[tuple[str, int]]) -> str:
    is_inside = client.kind is SourceKind.NODE or is_local(
        client, pipeline.state, pipeline.settings.config, spot.family
    )
    networks = [ip_network(f"{each}/{length % INSIDE}") for each, length in rows if is_inside or length < INSIDE]
    if not networks:
        return "rejected"
    if any(each.prefixlen == 0 for each in networks) or (client.is_one and _has(networks, client.networks[0])):
        return "answered"
    return "rejected" if client.is_one else "answered to sources in its source ranges"


def _has(networks: Sequence[Network], client: Network) -> bool:
    return any(client.overlaps(each) for each in networks)
