"""The words that annotations and fields of the configuration may have."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from nftproxy.installed import OPTIONS
from nftproxy.model.annotations import Word


def member_of(form: Word, text: str) -> Enum:
    """The word with this value."""
    return next(each for each in form.words if each.value == text)


ALGORITHMS: Sequence[Enum] = [
    word for each in OPTIONS if each.name == "algorithm" and isinstance(each.form, Word) for word in each.form.words
]
"""The algorithms of all extensions."""
