"""What is shown to people is text and nothing else."""

from __future__ import annotations

import pytest

from nftproxy.model.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("shop/web: naïve 'quotes' and \\ as they are", "shop/web: naïve 'quotes' and \\ as they are"),
        ("one\ntwo\r\x1b[2J\x85\u2028\u202e", r"one\ntwo\r\x1b[2J\x85\u2028\u202e"),
    ],
)
def test_what_is_not_printable_is_spelt_out(text: str, shown: str) -> None:
    """Line ends, escapes and marks of direction are spelt out; anything that can be printed stays as it is."""
    assert printable(text) == shown
