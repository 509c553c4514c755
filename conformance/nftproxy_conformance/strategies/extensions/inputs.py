"""The seam between strategies and extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

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


K = TypeVar("K", Option[Any], ConfigField[Any])


def joined(given: Iterable[Mapping[K, st.SearchStrategy[Any]]]) -> dict[K, st.SearchStrategy[Any]]:
    """The strategies of several extensions.  An annotation or field that extensions share takes a value of any."""
    keys: dict[str, K] = {}
    found: dict[str, st.SearchStrategy[Any]] = {}
    for key, values in (item for each in given for item in each.items()):
        keys.setdefault(key.name, key)
        found[key.name] = found[key.name] | values if key.name in found else values
    return {key: found[name] for name, key in keys.items()}
