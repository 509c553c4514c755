"""The seam between strategies and extensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from nftproxy.model.annotations import Option
from nftproxy.model.config_fields import ConfigField
from nftproxy.model.events import Observation
from nftproxy.model.settings import Config


@dataclass(frozen=True)
class Inputs:
    """The strategies for an extension's annotations and observations.

    Attributes:
        values: strategies for options whose values don't follow from their form.
        fields: strategies for fields of the configuration, given the fields that Kubernetes has.
        observed: pairs of an empty observation and the strategy for observations of its type.
    """

    values: Mapping[Option[Any], st.SearchStrategy[Any]] = field(default_factory=dict)
    fields: Callable[[Config], Mapping[ConfigField[Any], st.SearchStrategy[Any]]] = lambda _: {}
    observed: tuple[tuple[Observation, st.SearchStrategy[Any]], ...] = ()
