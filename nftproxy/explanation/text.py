"""An explanation for people: plain text, a paragraph for each place, a list for each kind of source."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from nftproxy.explanation.answer import Admits, Affinity, Case, Endpoint, Expected, Explanation, Fate, Place
from nftproxy.explanation.question import Kind
from nftproxy.model.addresses import host_port
from nftproxy.model.printable import printable

MOST_ENDPOINTS = 40
"""Endpoints that are shown of a list: JSON has all."""

_FATES = {
    Fate.ENDPOINT: "translated",
    Fate.FORWARDED: "forwarded by the agent",
    Fate.REJECTED: "rejected",
    Fate.DROPPED: "dropped",
    Fate.PASSED: "let through",
    Fate.NODE: "let through to the node",
}


def text(explanation: Explanation) -> Iterator[str]:
    """The lines of an explanation, without their ends."""
    source = f" from {explanation.source}" if explanation.source else ""
    yield f"{explanation.to}{source}, on node {explanation.node}"
    yield from (f"  {printable(note)}" for note in explanation.notes)
    for place in explanation.places:
        yield ""
        yield from _place(place)


def _place(place: Place) -> Iterator[str]:
    yield _head(place)
    if place.policy:
        yield f"  policy: {place.policy}"
    if place.source_ranges:
        yield f"  source ranges: {', '.join(place.source_ranges)}"
    if place.denied_ranges:
        yield f"  denied ranges: {', '.join(place.denied_ranges)}"
    if place.limits:
        yield f"  limits for each client: {'; '.join(place.limits)}"
    if place.affinity:
        yield f"  session affinity: {_affinity(place.affinity)}"
    yield from (f"  lost by {loser.owner}: {loser.code}: {loser.why}" for loser in place.losers)
    yield from (f"  note: {printable(note)}" for note in place.notes)
    for case in place.cases:
        yield from _case(case)
    yield from (f"  {line}" for line in _kernel(place.expected))


def _head(place: Place) -> str:
    where = f"{host_port(place.address, place.port)}/{place.protocol.value}"
    return f"{where}: {place.front} of Service {place.owner}" if place.owner else f"{where}: no Service is reached here"


def _affinity(affinity: Affinity) -> str:
    words = f"{affinity.timeout} s, {affinity.how}"
    if affinity.remembered:
        kept = affinity.remembered
        return f"{words}; this one is sent to {kept.pod} for {kept.seconds:.0f} s more"
    return f"{words}; this one is not remembered" if affinity.is_known and affinity.key else words


def _case(case: Case) -> Iterator[str]:
    rejection = f" ({case.rejection})" if case.rejection else ""
    sources = ", ".join(case.sources) if len(case.sources) < len(Kind) else "anywhere"
    yield f"  from {sources}: {_FATES[case.fate]}{rejection}: {printable(case.why)}"
    if case.admission and case.admission.admits is not Admits.NO:
        yield f"    admitted: {printable(case.admission.why)}"
    if case.list:
        yield f"    list: {case.list.value}, by {case.list_why}"
    if case.source_why:
        yield f"    source: {'masqueraded' if case.is_masqueraded else 'kept'}: {case.source_why}"
    yield from _endpoints(case, case.endpoints)


def _endpoints(case: Case, endpoints: Sequence[Endpoint]) -> Iterator[str]:
    """The endpoints on the list, then the others."""
    ordered = sorted(endpoints, key=lambda each: each.share == 0)
    for endpoint in itertools.islice(ordered, MOST_ENDPOINTS):
        where = host_port(endpoint.address, endpoint.port)
        share = f"{endpoint.share:.1f} %" if endpoint.share else "no"
        here = ", on this node" if endpoint.is_local else ""
        pod = f" {printable(endpoint.pod)}" if endpoint.pod else ""
        yield f"    {share:>7}  {where}{pod}: {endpoint.why}{here}{_exception(case, endpoint)}"
    if len(endpoints) > MOST_ENDPOINTS:
        yield f"    and {len(endpoints) - MOST_ENDPOINTS} more (--output json has all)"


def _exception(case: Case, endpoint: Endpoint) -> str:
    """Where an endpoint sees another source than the rest of the list."""
    if not endpoint.share or endpoint.is_masqueraded is case.is_masqueraded:
        return ""
    return "; source masqueraded, as it is itself" if endpoint.is_masqueraded else "; source kept: it is the node's own"


def _kernel(expected: Sequence[Expected]) -> Iterator[str]:
    held = [each.is_held for each in expected]
    present = sum(each.value is not None for each in expected)
    if not expected or None in held:
        return
    if all(held):
        yield f"kernel: holds exactly the {present} elements of this, and none that it must not"
        return
    for each in expected:
        if not each.is_held:
            wanted = "nothing" if each.value is None else _element(each.key, each.value)
            found = "nothing" if each.found is None else _element(each.key, each.found)
            yield f"kernel: {each.container} must have {wanted}, and has {found}"


def _element(key: str, value: str) -> str:
    return f"{{ {key} : {value} }}" if value else f"{{ {key} }}"
