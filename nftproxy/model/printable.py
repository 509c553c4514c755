"""Text of anybody's, made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with whatever could end a line or steer a terminal spelt out, as Python escapes it."""
    return text if text.isprintable() else repr(text)[1:-1]
