"""Durations in Go's notation."""

from __future__ import annotations

import pytest

from nftproxy.config.durations import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("30s", 30),
        ("1h2m3.5s", 3723.5),
        ("700ms", 0.7),
        ("5us", 5e-6),
        ("5µs", 5e-6),
        ("9ns", 9e-9),
        (".5m", 30),
        ("+1.h", 3600),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """Durations are as Go writes and reads them."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "1", "1d", "-1s", "1s ", "1 s", "1m1", "1e3s", ".s", "٣s", "1" * 60 + "h", "9" * 9 + "h"]
)
def test_bad_durations(text: str) -> None:
    """A text that Go would not parse as a duration, or could not hold, is rejected."""
    with pytest.raises(ValueError, match=r"is not a duration as in 1h30m or 2\.5s|is too long a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0s", "1s", "0.5s", "3600s", "0.000000001s", "2.3s"])
def test_text_of_durations(text: str) -> None:
    """A duration is written so that reading it gives the same."""
    assert duration_text(parse_duration(text)) == text
