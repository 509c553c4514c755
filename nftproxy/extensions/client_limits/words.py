"""The words of client limits: in `explain`, and the keys of its ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from nftproxy.explanation.answer import Admission, Admits, Case, ExplainedPlace, Fate, PlaceRestriction
from nftproxy.explanation.cases import by_ranges, holder_of, listed
from nftproxy.explanation.clients import Client
from nftproxy.explanation.ownership import Served
from nftproxy.explanation.packet_path import AddedStage, Answers, Card, CardRow, HookStage, prefix_of
from nftproxy.explanation.question import ToAddress
from nftproxy.explanation.words import Restrictions, Words
from nftproxy.extensions.client_limits.annotations import CONNECTION_RATE, CONNECTIONS, DENIED_RANGES
from nftproxy.extensions.client_limits.screening import PortScreen, denies_some
from nftproxy.model.addresses import Family, family_of
from nftproxy.model.objects import Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.facts import PortFacts
from nftproxy.policy.fronts import has_own_list


def screen_of(facts: PortFacts) -> PortScreen | None:
    """The screening of a port, None without any."""
    found = (each.elements.facts for each in facts.additions)
    return next((each for each in found if isinstance(each, PortScreen)), None)


def screening(pipeline: Pipeline, spot: ToAddress, served: Served, client: Client) -> Admission | None:
    """The verdict of annotations: denied ranges, and the source ranges of node ports.  None if they say nothing."""
    screen, family = screen_of(served.facts), spot.family
    if screen is None:
        return None
    denial = _denial(pipeline, family, served, client) if denies_some(served.service, family) else None
    if denial:
        return denial
    found = by_ranges(pipeline, family, served, client, screen.guarded, screen.allowed)
    is_closed = found is not None and found.admits is Admits.NO
    return msgspec.structs.replace(found, why=f"source ranges: {found.why}") if found and is_closed else found


def _denial(pipeline: Pipeline, family: Family, served: Served, client: Client) -> Admission | None:
    """The verdict of denied ranges on a client, None if the client is in none of them."""
    if not has_own_list(pipeline.state, served.service, family):
        why = "every source is denied: another Service has the same ClusterIP, which is the name of the list"
        return Admission(Admits.NO, "", why)
    ranges = [each for each in served.service.options[DENIED_RANGES] if family_of(each) is family]
    by = holder_of(ranges, client.networks[0]) if client.networks else None
    if by and all(holder_of(ranges, each) for each in client.networks):
        return Admission(Admits.NO, str(by), f"{by} is denied, and holds {client}")
    if client.networks and not any(each.overlaps(network) for each in ranges for network in client.networks):
        return None
    return Admission(Admits.DEPENDS, "", f"denies sources in {listed(ranges)}")


def restrictions(spot: ToAddress, served: Served) -> Restrictions:
    """The restrictions of a front's clients by annotations."""
    screen, options = screen_of(served.facts), served.service.options
    denied = tuple(str(each) for each in options[DENIED_RANGES] if family_of(each) is spot.family)
    limits = tuple(_limits(served.service))
    is_guarded = screen is not None and any(front == served.reach.front for front, _ in screen.guarded)
    return Restrictions(tuple(_said(denied, limits)), is_guarded)


def _said(denied: tuple[str, ...], limits: Sequence[str]) -> Iterator[PlaceRestriction]:
    if denied:
        yield PlaceRestriction(f"denied ranges: {', '.join(denied)}", denied)
    if limits:
        words = f"limits for each client: {'; '.join(limits)}; new connections beyond them are dropped"
        yield PlaceRestriction(words, condition="within the limits")


def _card(place: ExplainedPlace, answers: Answers, case: Case) -> Card | None:
    """The card of a path: the sets and maps that have the place, and the reason if they drop its packets."""
    prefix = prefix_of(place)
    if f"{prefix}screened" not in answers or not (case.is_restricted or case.fate is Fate.ENDPOINT):
        return None
    said = {
        "denying": f"denies {', '.join(cidr for each in place.restrictions for cidr in each.ranges)}",
        "guarded": f"source ranges: {', '.join(place.source_ranges)}",
        "rates": "limits new connections per second",
        "connections": "limits connections at a time",
    }
    rows = [CardRow(f"@{prefix}{name}", words) for name, words in said.items() if f"{prefix}{name}" in answers]
    if case.is_restricted:
        rows.append(CardRow("drop", case.why))
    return Card("screen", tuple(rows), is_end=case.is_restricted)


STAGE = AddedStage(HookStage("limits of clients", ("screen-postrouting", "screen-input")), _card)


def _limits(service: Service) -> Iterator[str]:
    """The limits of annotations for each client."""
    if rate := service.options[CONNECTION_RATE]:
        yield f"new connections per second: {rate.per_second}, in a row: {rate.burst}"
    if most := service.options[CONNECTIONS]:
        yield f"connections at a time: {most}"


def range_keys(facts: PortFacts) -> Iterable[str]:
    """The keys of the source ranges that admit or deny clients of a Service port."""
    screen = screen_of(facts)
    return [f"{name} . {source}" for name, source in (*screen.allowed, *screen.denied)] if screen else []


WORDS = Words(admission=screening, restrictions=restrictions, stage=STAGE, range_keys=range_keys)
