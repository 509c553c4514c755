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
    """What strategies draw for an extension.

    Attributes:
        values: the values of options whose form doesn't say them.
        observed: the extension's observations, each kind with the empty one.
    """

    values: Mapping[Option[Any], st.SearchStrategy[Any]] = field(default_factory=dict)
    observed: tuple[tuple[Observation, st.SearchStrategy[Any]], ...] = ()
