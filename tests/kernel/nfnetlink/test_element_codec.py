"""Keys and values of sets as the kernel has them."""

from __future__ import annotations

import pytest

from nftproxy.kernel.nfnetlink.element_codec import (
    INTEGER,
    IPV4,
    IPV6,
    PORT,
    PROTOCOL,
    decoded,
    key_bounds,
    key_width,
    types_of,
)
from nftproxy.model.errors import Unavailable


@pytest.mark.parametrize(
    ("text", "types", "size"),
    [
        ("10.96.0.10", [IPV4], 4),
        ("443", [PORT], 2),
        ("10.96.0.10 . tcp . 443", [IPV4, PROTOCOL, PORT], 12),
        ("fd00:96::1 . sctp . 1", [IPV6, PROTOCOL, PORT], 24),
        ("10.1.0.4 . 8080 . 3", [IPV4, PORT, INTEGER], 12),
    ],
)
def test_keys_there_and_back(text: str, types: list[int], size: int) -> None:
    """A key has as many bytes as its parts need, and reads as it was written."""
    first, last = key_bounds(text, types)
    assert first == last
    assert len(first) == key_width(types) == size
    assert " . ".join(decoded(first, types)) == text


def test_a_range_has_two_keys() -> None:
    """A network in a key is the keys of its first and its last address."""
    first, last = key_bounds("10.96.0.10 . 10.1.0.0/16", [IPV4, IPV4])
    assert decoded(first, [IPV4, IPV4]) == ("10.96.0.10", "10.1.0.0")
    assert decoded(last, [IPV4, IPV4]) == ("10.96.0.10", "10.1.255.255")


def test_types_of_a_concatenation() -> None:
    """The number of a type has six bits for each part, the first part's highest."""
    assert types_of((IPV4 << 6 | PROTOCOL) << 6 | PORT) == [IPV4, PROTOCOL, PORT]
    assert types_of(0) == []


def test_an_unknown_type_is_named() -> None:
    """A type that none of our sets has, as in another program's set of the same name, is an error that says so."""
    with pytest.raises(Unavailable, match="nft's type 41 are unknown"):
        types_of(IPV4 << 6 | 41)
    with pytest.raises(Unavailable, match="has 1 parts, and the kernel's keys have 2"):
        key_bounds("10.96.0.10", [IPV4, PORT])
