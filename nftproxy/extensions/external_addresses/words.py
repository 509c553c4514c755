"""The words of closed ports and answered pings, in `explain` and `list`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nftproxy.explanation.clients import Client
from nftproxy.explanation.ownership import Served
from nftproxy.explanation.question import ToAddress
from nftproxy.explanation.words import Words
from nftproxy.extensions.external_addresses.fields import closes_external_addresses, is_asked_for
from nftproxy.extensions.external_addresses.ping_remarks import pings_said
from nftproxy.extensions.external_addresses.rules import ExternalAddressesPort, own_external_addresses
from nftproxy.model.objects import ObjectKey, Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.compile import compile_service
from nftproxy.policy.fronts import claimed_fronts


def closes(pipeline: Pipeline, spot: ToAddress) -> ObjectKey | None:
    """The first Service by which the ports of an external address are closed, None if they aren't."""
    state, config, family = pipeline.state, pipeline.settings.config, spot.family
    for key in state.claims.external_users(spot.address) if closes_external_addresses(config) else ():
        for _, fronts in claimed_fronts(state, config, family, state.services[key]):
            had = [each for each in fronts if not each.denial]
            if key not in pipeline.withheld[family] and spot.address in own_external_addresses(state, had):
                return key
    return None


def remarks(pipeline: Pipeline, spot: ToAddress, served: Served, asking: Sequence[Client]) -> Iterator[str]:
    """A remark about the clients whose pings the front's address answers."""
    return pings_said(pipeline, spot, served, asking)


def listed(pipeline: Pipeline, service: Service) -> Iterator[str]:
    """A note for each address at which the rules reject other ports, or answer pings, if so configured."""
    state, settings = pipeline.state, pipeline.settings
    if service.key in state.excessive or not is_asked_for(settings.config):
        return
    families = [each for each in pipeline.generations if service.key not in pipeline.withheld.get(each, ())]
    facts = [facts for family in families for _, facts in compile_service(state, settings, family, service)]
    parts = [each.elements.facts for port in facts for each in port.additions]
    ports = [each for each in parts if isinstance(each, ExternalAddressesPort)]
    if closes_external_addresses(settings.config):
        closed = dict.fromkeys(address for each in ports for address in each.external_ips)
        yield from (f"{address}: ports without a Service are closed" for address in closed)
    answering = dict.fromkeys(address for each in ports for address, _ in each.pings)
    yield from (f"{address}: answers pings" for address in answering)


WORDS = Words(closes=closes, remarks=remarks, listed=listed)
