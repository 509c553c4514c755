"""Text for people is printable."""

from __future__ import annotations

import pytest

from nftproxy.model.texts import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("shop/web: naïve 'quotes' and \\ as they are", "shop/web: naïve 'quotes' and \\ as they are"),
        ("one\ntwo\r\x1b[2J\x85\u2028\u202e", r"one\ntwo\r\x1b[2J\x85\u2028\u202e"),
    ],
)
def test_what_is_not_printable_is_spelt_out(text: str, shown: str) -> None:
    """Line ends, escapes and marks of direction are escaped.  Printable characters stay as they are."""
    assert printable(text) == shown
