"""Label selectors as kubectl takes them: `app=web,tier in (front, back),!canary`.

Syntax and meaning are those of Kubernetes (apimachinery, labels.Parse).  All requirements must hold, and `!=` and
`notin` hold for an object without the label, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from nftproxy.api.decode import is_label_key, is_label_value, show
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem

LONGEST = 4096
"""Characters of a selector: more than anyone types."""

_KEY = r"[-A-Za-z0-9_./]+"
_VALUES = r"[-A-Za-z0-9_., \t]*"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!\s*)?(?P<alone>{_KEY})"
    rf"|(?P<equal>{_KEY})\s*(?P<sign>==?|!=)\s*(?P<value>[-A-Za-z0-9_.]*)"
    rf"|(?P<key>{_KEY})\s+(?P<word>in|notin)\s*\((?P<values>{_VALUES})\))\s*(?:,|\Z)"
)


class Requirement(msgspec.Struct, frozen=True):
    """The label must exist with one of the values (None: with any).  If not `wanted`, the opposite must hold."""

    key: str
    values: frozenset[str] | None
    wanted: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets the requirement."""
        has = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return has is self.wanted


Selector = tuple[Requirement, ...]


def parse_selector(text: str) -> Selector:
    """Parse a selector.  An empty selector selects everything.

    Raises:
        BadInput: it is no selector.
    """
    found = []
    place = 0
    text = text.strip()
    while place < len(text) and len(text) <= LONGEST:
        match = _REQUIREMENT.match(text, place)
        requirement = _requirement(match) if match else None
        if match is None or requirement is None:
            break
        found.append(requirement)
        place = match.end()
    if place < len(text) or text.endswith(","):
        where = f", from {show(text[place:])} on" if place else ""
        raise BadInput(
            Problem("", "", "selector", f"{show(text)} is not a label selector{where}", Code.SELECTION_UNREADABLE)
        )
    return tuple(found)


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether all requirements hold."""
    return all(requirement.holds(labels) for requirement in selector)


def _requirement(match: re.Match[str]) -> Requirement | None:
    """Return a requirement, or None if a key or value can't be part of a label."""
    if match["alone"]:
        made = Requirement(match["alone"], None, wanted=not match["absent"])
    elif match["equal"]:
        made = Requirement(match["equal"], frozenset({match["value"]}), wanted=match["sign"] != "!=")
    else:
        values = frozenset(value.strip() for value in match["values"].split(","))
        made = Requirement(match["key"], values, wanted=match["word"] == "in")
    is_good = is_label_key(made.key) and all(not value or is_label_value(value) for value in made.values or ())
    return made if is_good else None
