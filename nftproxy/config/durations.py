"""Durations in Go's notation (time.ParseDuration)."""

from __future__ import annotations

import re

from nftproxy.api.decode import show

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({'|'.join(sorted(_NANOSECONDS, reverse=True))})")
_DURATION = re.compile(rf"\+?(?:0|(?:{_PART.pattern})+)")
_LONGEST_DURATION = 64
"""Characters: more than Go ever writes, and few enough for a pattern that may backtrack."""


def parse_duration(text: str) -> float:
    """Return the seconds of a duration in Go's notation ("1h2m3.5s", "30s", "0"), which may not be negative.

    Raises:
        ValueError: it is no such duration, or exceeds Go's 292 years.
    """
    if len(text) > _LONGEST_DURATION or not _DURATION.fullmatch(text):
        raise ValueError(f"{show(text)} is not a duration as in 1h30m or 2.5s")
    nanoseconds = sum(round(float(number) * _NANOSECONDS[unit]) for number, unit in _PART.findall(text))
    if nanoseconds >= 2**63:
        raise ValueError(f"{show(text)} is too long a duration")
    return nanoseconds / 10**9


def duration_text(seconds: float) -> str:
    """Return a duration in Go's notation, to the nanosecond."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
