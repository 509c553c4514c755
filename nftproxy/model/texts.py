"""Texts of clusters, which may be hostile, and of which there are very many."""

from __future__ import annotations

import functools
from collections.abc import Sequence


def printable(text: str) -> str:
    """Escape the characters of a text that could end a line or control a terminal, as Python escapes them."""
    return text if text.isprintable() else repr(text)[1:-1]


SHOWN = 3
"""Texts that a list in words shows."""


def first_of(texts: Sequence[str]) -> str:
    """Return the first few texts as a list in words, with the number of the rest."""
    rest = len(texts) - SHOWN
    return ", ".join(map(printable, texts[:SHOWN])) + (f" and {rest} more" if rest > 0 else "")


@functools.lru_cache(maxsize=16384)
def intern_text(text: str) -> str:
    """Return the first object with this text: a name of a namespace or port.

    Every object that is decoded brings its own.
    """
    return text
