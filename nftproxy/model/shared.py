"""Texts that very many values have, each kept once: names of nodes, namespaces, ports, sets, and verdicts."""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=16384)
def shared(text: str) -> str:
    """The same text, as the one object that was given first.

    Every object that is decoded and every line that is rendered brings its own.  Of the memory that a cluster's objects
    and rules took, a sixth was the same few texts again and again.
    """
    return text
