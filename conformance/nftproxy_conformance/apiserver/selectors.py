"""Label and field selectors of lists and watches.

A requirement of either kind has a key, the allowed values (None for any), and a flag that negates it.  So `!=` and
`notin` match an object without the key, as in the API.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nftproxy_conformance.apiserver.status import ApiError

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = rf"(?:{_KEY})?"
_LABEL = re.compile(
    rf"(?P<absent>!)\s*(?P<missing>{_KEY})"
    rf"|(?P<key>{_KEY})(?:\s*(?P<equal>==|=|!=)\s*(?P<value>{_VALUE})|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
)
_FIELD = re.compile(r"(?P<key>[A-Za-z.]+)(?P<equal>==|=|!=)(?P<value>[^,]*)")


class Requirement(NamedTuple):
    """A requirement of a selector.  A selector matches if all its requirements do."""

    key: str
    values: frozenset[str] | None
    is_negated: bool

    def is_met_by(self, given: Mapping[str, str]) -> bool:
        """True if labels or fields are as required."""
        has = self.key in given and (self.values is None or given[self.key] in self.values)
        return has != self.is_negated


@dataclass(frozen=True)
class Selection:
    """The objects of a resource that a request selects.  A namespace of "" selects all."""

    namespace: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    @property
    def has_selector(self) -> bool:
        """True if labels or fields are selected."""
        return bool(self.labels or self.fields)

    def matches(self, namespace: str, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
        """True if an object is selected."""
        if self.namespace and namespace != self.namespace:
            return False
        return all(each.is_met_by(labels) for each in self.labels) and all(
            each.is_met_by(fields) for each in self.fields
        )

    @property
    def name(self) -> str:
        """The name that the field selector requires, or "".  RBAC's resourceNames are compared with it."""
        for each in self.fields:
            if each.key == "metadata.name" and each.values and not each.is_negated:
                return next(iter(each.values))
        return ""


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """A labelSelector's parts.

    Raises:
        ApiError: 400, it can't be read.
    """
    return tuple(_label_requirement(part.strip()) for part in _split(text))


def parse_fields(text: str, selectable: Collection[str]) -> tuple[Requirement, ...]:
    """A fieldSelector's parts.  `selectable` are the resource's own fields for selectors.

    Raises:
        ApiError: 400, it can't be parsed, or it names a field that this resource has no selector for.
    """
    return tuple(_field_requirement(part, selectable) for part in text.split(",") if part)


def _split(text: str) -> Iterator[str]:
    """Split at commas outside of parentheses."""
    return (part for part in re.split(r",(?![^(]*\))", text) if part.strip())


def _label_requirement(text: str) -> Requirement:
    match = _LABEL.fullmatch(text)
    if match is None:
        raise ApiError(400, f"unable to parse requirement: found '{text}'")
    if match["absent"]:
        return Requirement(match["missing"], None, is_negated=True)
    if match["equal"]:
        return Requirement(match["key"], frozenset({match["value"]}), match["equal"] == "!=")
    if match["set"]:
        values = frozenset(value.strip() for value in match["values"].split(","))
        return Requirement(match["key"], values, match["set"] == "notin")
    return Requirement(match["key"], None, is_negated=False)


def _field_requirement(text: str, selectable: Collection[str]) -> Requirement:
    match = _FIELD.fullmatch(text)
    if match is None:
        raise ApiError(400, f"invalid selector: '{text}'; can't understand '{text}'")
    if match["key"] not in {"metadata.name", "metadata.namespace", *selectable}:
        raise ApiError(400, f'field label not supported: "{match["key"]}"')
    return Requirement(match["key"], frozenset({match["value"]}), match["equal"] == "!=")
