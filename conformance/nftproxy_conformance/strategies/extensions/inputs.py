"""The seam between strategies and extensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from nftproxy.model.annotations import Option
from nftproxy.model.events import Observation


@dataclass(frozen=True)
class Inputs:
    """The strategies for an extension's annotations and observations.

    Attributes:
        values: strategies for options whose values don't follow from their form.
        observed: pairs of an empty observation and the strategy for observations of its type.
    """

    values: Mapping[Option[Any], st.SearchStrategy[Any]] = field(default_factory=dict)
    observed: tuple[tuple[Observation, st.SearchStrategy[Any]], ...] = ()
