"""The first fault that a feature's judge finds."""

from __future__ import annotations

from typing import NamedTuple

from nftproxy_conformance.lab import Outcome
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.trials.trial import Difference


class Finding(NamedTuple):
    """A wrong connection, and its worlds: a world, or the worlds before and after a change."""

    worlds: tuple[World, ...]
    difference: Difference


def differs(outcome: Outcome, expected: Outcome, seen: Outcome, what: str) -> Difference:
    """The difference of a later packet of a connection."""
    assert outcome.probe
    return Difference(outcome.probe, frozenset({expected}), frozenset({seen}), what)
