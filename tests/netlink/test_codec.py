"""Netlink's messages and attributes, there and back."""

from __future__ import annotations

import errno
import re

import pytest

from nftproxy.netlink.codec import (
    ACKNOWLEDGE,
    CODE,
    DONE,
    DUMP_INTERRUPTED,
    ERROR,
    HEADER,
    REQUEST,
    attribute,
    attribute_map,
    attribute_pattern,
    attributes_of,
    message,
    messages_of,
    named,
    nest_pattern,
    nested,
    number_of,
    split,
    text_of,
)

VALUES = [b"", b"1", b"12345", b"12345678"]


def ended(code: int, *, kind: int = ERROR, flags: int = 0) -> bytes:
    """The last message of an answer, with an error's number."""
    return HEADER.pack(HEADER.size + CODE.size, kind, flags, 0, 0) + CODE.pack(-code)


def test_messages_there_and_back() -> None:
    """Each message has its type, its flags beside NLM_F_REQUEST, and its body, of any length."""
    data = b"".join(message(20 + number, ACKNOWLEDGE, value.ljust(8)) for number, value in enumerate(VALUES))
    assert list(messages_of(data)) == [(20 + number, value.ljust(8)) for number, value in enumerate(VALUES)]
    assert HEADER.unpack_from(data)[2] == REQUEST | ACKNOWLEDGE


def test_attributes_there_and_back() -> None:
    """Each attribute has its kind and value, of any length.  The next begins at a multiple of four bytes."""
    wholes = [attribute(kind, value) for kind, value in enumerate(VALUES, 1)]
    assert [len(whole) for whole in wholes] == [4, 8, 12, 12]
    data = b"".join(wholes)
    assert list(attributes_of(data)) == list(enumerate(VALUES, 1))
    assert attribute_map(b"head" + data, 4) == dict(enumerate(VALUES, 1))
    assert list(split(b"head" + data, 4)) == [
        whole[: 4 + len(value)] for whole, value in zip(wholes, VALUES, strict=True)
    ]


def test_nested_attributes_are_marked() -> None:
    """An attribute that holds attributes is marked as such, and has its kind all the same."""
    whole = nested(7, named(1, "fronts"))
    ((kind, held),) = attributes_of(whole)
    assert kind == 7
    assert text_of(attribute_map(held)[1]) == "fronts"
    assert re.fullmatch(nest_pattern(7) + attribute_pattern(7, 1) + b"fronts.{2}", whole, re.DOTALL)
    assert re.fullmatch(nest_pattern(7) + b".+", attribute(7, held), re.DOTALL), "marked or not"


@pytest.mark.parametrize(("value", "number"), [(b"", 0), (b"\1\0", 256), (b"\xff\xff\xff\xfd", 2**32 - 3)])
def test_numbers_are_in_network_byte_order(value: bytes, number: int) -> None:
    """A number of any size is read, and has a sign if asked for."""
    assert number_of(value) == number
    assert number_of(value, signed=True) == (number if number < 2**31 else -3)


@pytest.mark.parametrize("kind", [ERROR, DONE])
def test_an_error_is_raised(kind: int) -> None:
    """The kernel's error is raised as Python's, after the messages before it.  Success is a message."""
    seen = list[tuple[int, bytes]]()
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        seen.extend(messages_of(message(20, 0, b"body") + ended(errno.ENOENT, kind=kind)))
    assert list(messages_of(ended(0, kind=kind))) == [(kind, bytes(4))]


def test_an_interrupted_listing_is_an_error_unless_it_may_change() -> None:
    """A listing during which something changed is refused, or taken as it is."""
    data = ended(0, kind=DONE, flags=DUMP_INTERRUPTED)
    with pytest.raises(InterruptedError, match="changed"):
        list(messages_of(data))
    assert list(messages_of(data, may_change=True)) == [(DONE, bytes(4))]
