"""Least connections (`nftproxy.dev/algorithm: least-connections`): shares that follow connections."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import TYPE_CHECKING

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.least_connections.annotations import BALANCING, WORD, is_asked_for, is_asked_of
from nftproxy.extensions.least_connections.balanced_lists import BalancedLists
from nftproxy.extensions.least_connections.balanced_rows import NO_FACTORS, balanced, is_balanced, most_balanced
from nftproxy.extensions.least_connections.codes import LeastConnectionsCode
from nftproxy.extensions.least_connections.factors import ListKey, LoadFactors
from nftproxy.extensions.least_connections.fields import DEFAULT_BALANCING
from nftproxy.extensions.least_connections.known_factors import concerned, factors_of
from nftproxy.model.addresses import Protocol
from nftproxy.model.annotations import PLAIN, Options
from nftproxy.model.objects import Place, Service, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.choosing.verdicts import Candidate
from nftproxy.policy.drawing import placed
from nftproxy.policy.extension import Drawn, DrawnPort
from nftproxy.policy.numbers import Draw

if TYPE_CHECKING:
    from nftproxy.explanation.words import Words


def _defaults(config: Config) -> Options:
    return Options.of({BALANCING: WORD}) if config[DEFAULT_BALANCING] is WORD else PLAIN


def _uses(service: Service) -> Collection[Hashable]:
    return (WORD,) if is_asked_for(service) else ()


def _drawn(port: DrawnPort) -> Drawn | None:
    if port.is_hashed or not is_asked_of(port.service, port.port.protocol):
        return None
    factors = factors_of(port.state)

    def rows(candidates: Sequence[Candidate], policy: TrafficPolicy) -> Sequence[Place]:
        if not is_balanced(len(candidates)):
            return placed(candidates)
        key = ListKey(port.service.key, port.port.name, port.family, policy)
        return balanced(candidates, factors.get(key, NO_FACTORS))

    return Drawn(Draw.RANDOM, rows)


def _most_rows(service: Service, protocol: Protocol, endpoints: int, rows: int) -> int:
    return most_balanced(endpoints, rows) if is_asked_of(service, protocol) else rows


def _words() -> Words:
    from nftproxy.extensions.least_connections.words import WORDS

    return WORDS


LEAST_CONNECTIONS = ExplainedExtension(
    name="least_connections",
    codes=tuple(LeastConnectionsCode),
    options=(BALANCING,),
    defaults=_defaults,
    uses=_uses,
    drawn=_drawn,
    most_rows=_most_rows,
    view=lambda settings, _: BalancedLists(settings),
    concerned={LoadFactors: concerned},
    words=_words,
)
