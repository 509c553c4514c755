"""Limits and denied ranges for clients of a Service: its share of the rules."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.client_limits.annotations import DENIED_RANGES, OPTIONS
from nftproxy.extensions.client_limits.screening import PORT, SHARED, RateFacts, ScreenFacts, ports, restriction
from nftproxy.model.addresses import Family
from nftproxy.model.objects import Service
from nftproxy.model.settings import Config
from nftproxy.policy.facts import Part
from nftproxy.policy.limits import fronts_at_most
from nftproxy.policy.ranges import keys_at_most, source_lengths

if TYPE_CHECKING:
    from nftproxy.explanation.words import Words

OF_FRONT = 4
"""Elements of a front whose clients are limited (port.nft.j2)."""


def _uses(service: Service) -> Collection[str]:
    return ("client_limits",) if service.options.restricts else ()


def _elements(service: Service, _config: Config) -> int:
    """The most elements that a Service has by annotations."""
    return OF_FRONT * fronts_at_most(service).all + keys_at_most(service.options[DENIED_RANGES])


def _later(family: Family) -> Part:
    """A sample of the declarations: a rate and a limit of connections."""
    facts = ScreenFacts(
        table=family.table,
        ip=family.value,
        transports="",
        asked="",
        lengths=source_lengths(family),
        nodeports=(),
        counted=("denied",),
        dropped=(),
        rates=(RateFacts("1-1", 1, 1, ""),),
        connections=(1,),
    )
    return Part(SHARED, facts)


def _words() -> Words:
    from nftproxy.extensions.client_limits.words import WORDS

    return WORDS


CLIENT_LIMITS = ExplainedExtension(
    name="client_limits",
    templates=(PORT, SHARED),
    options=OPTIONS,
    uses=_uses,
    elements=_elements,
    restriction=restriction,
    later=_later,
    ports=ports,
    words=_words,
)
