"""Least connections (`nftproxy.dev/algorithm: least-connections`): shares that follow connections."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from nftproxy.explanation.explained_extension import Chosen, ExplainedExtension
from nftproxy.explanation.question import ToAddress
from nftproxy.extensions.least_connections.annotations import BALANCING, WORD, is_asked_for
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
from nftproxy.pipeline import Pipeline
from nftproxy.policy.choosing.verdicts import Candidate
from nftproxy.policy.drawing import is_hashed, placed
from nftproxy.policy.extension import Drawn, DrawnPort
from nftproxy.policy.numbers import Draw


def _defaults(config: Config) -> Options:
    return Options.of({BALANCING: WORD}) if config[DEFAULT_BALANCING] is WORD else PLAIN


def _uses(service: Service) -> Collection[Hashable]:
    return (WORD,) if is_asked_for(service) else ()


def _is_asked(service: Service, protocol: Protocol) -> bool:
    """Whether least connections holds for a port of this protocol.

    Only TCP has connections to count: of UDP and SCTP, connection tracking knows packets that came lately.
    """
    return is_asked_for(service) and protocol is Protocol.TCP


def _drawn(port: DrawnPort) -> Drawn | None:
    if port.is_hashed or not _is_asked(port.service, port.port.protocol):
        return None
    factors = factors_of(port.state)

    def rows(candidates: Sequence[Candidate], policy: TrafficPolicy) -> Sequence[Place]:
        if not is_balanced(len(candidates)):
            return placed(candidates)
        key = ListKey(port.service.key, port.port.name, port.family, policy)
        return balanced(candidates, factors.get(key, NO_FACTORS))

    return Drawn(Draw.RANDOM, rows)


def _most_rows(service: Service, protocol: Protocol, endpoints: int, rows: int) -> int:
    return most_balanced(endpoints, rows) if _is_asked(service, protocol) else rows


def _how_chosen(pipeline: Pipeline, spot: ToAddress, service: Service, endpoints: int) -> Chosen | None:
    is_asked = _is_asked(service, spot.protocol) and not is_hashed(spot.family, service, pipeline.settings)
    if not (is_asked and is_balanced(endpoints)):
        return None
    return Chosen(WORD.value, f"drawn at random, rather with fewer connections ({WORD.value})")


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
    how_chosen=_how_chosen,
)
