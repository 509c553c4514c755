"""Hypothesis strategies: nasty but valid clusters, their changes, and the connections to try on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hypothesis import HealthCheck, Phase, settings

P = ParamSpec("P")
R = TypeVar("R")


def quick(examples: int = 0) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return settings of Hypothesis for properties of whole clusters: few examples, and no deadline.

    Args:
        examples: the least number of examples, if the profile has fewer.
    """
    return settings(
        max_examples=max(examples, settings().max_examples),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        # the profile's, except the phase that traces every line on Python 3.11
        phases=[phase for phase in settings().phases if phase is not Phase.explain],
    )
