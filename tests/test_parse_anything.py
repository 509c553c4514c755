"""Whatever JSON stands anywhere in an object, parsing never raises, and what it makes is sound."""

from __future__ import annotations

import copy
import ipaddress
import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nftproxy.addresses import Family, parse_address, parse_virtual_address
from nftproxy.errors import Problem
from nftproxy.model import (
    ClusterObject,
    EndpointSlice,
    Ignored,
    Node,
    Service,
)
from nftproxy.parse import parse_json, parse_manifest, parse_object
from tests.raw import CIDR, NODE, SERVICE, SLICE

nasty = st.one_of(
    st.sampled_from(
        ["", "None", "10.0.0.1", "::1", "0.0.0.0/0", "a\nb", '"; flush ruleset', "\0", "x" * 10_000, "\ud800"]
    ),
    st.text(max_size=20),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -1, 0, 80, 2**64]),
    st.floats(allow_nan=False),
    nasty,
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(nasty, inner, max_size=3), max_leaves=8
)


def paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of a value and of everything in it."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield from paths(inner, (*path, step))


EXAMPLES = (SERVICE, SLICE, NODE, CIDR, {"apiVersion": "v1", "kind": "List", "items": [SERVICE, SLICE]})
PLACES = [(example, path) for example in EXAMPLES for path in paths(example)]


@st.composite
def corrupted(draw: st.DrawFn) -> object:
    """A good object in which one or two values, or the whole, are anything at all."""
    example, path = draw(st.sampled_from(PLACES))
    made = replaced(example, path, draw(anything))
    if draw(st.booleans()):
        made = replaced(made, draw(st.sampled_from(list(paths(made)))), draw(anything))
    return made


def replaced(value: Any, path: tuple[str | int, ...], by: object) -> object:
    """The value with what is at the path replaced."""
    if not path:
        return by
    made = copy.copy(value)
    made[path[0]] = replaced(value[path[0]], path[1:], by)
    return made


def leaves(value: object) -> Iterator[object]:
    """Everything that a model value is made of."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from leaves(getattr(value, field))
    elif isinstance(value, tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def assert_sound(value: ClusterObject | Ignored) -> None:
    """Model values hold bounded printable text, canonical addresses, networks and small numbers, and nothing else."""
    for leaf in leaves(value):
        match leaf:
            case str():
                assert len(leaf) <= 300
                assert leaf.isascii()
                assert leaf.isprintable()
                assert not set(leaf) & set("\"'`;{}$\\")
            case int():
                assert 0 <= leaf < 2**40
            case None | Enum() | ipaddress.IPv4Network() | ipaddress.IPv6Network():
                pass
            case _:
                pytest.fail(f"{leaf!r} in {value}")
    match value:
        case Service():
            for address in value.cluster_ips + value.external_ips + value.load_balancer_ips:
                assert parse_virtual_address(address) == address
            assert len({(port.name, port.protocol) for port in value.ports}) == len(value.ports)
            assert all(1 <= port.port <= 65535 and 0 <= port.node_port <= 65535 for port in value.ports)
        case EndpointSlice():
            assert all(parse_virtual_address(each.address) == each.address for each in value.endpoints)
            assert all((":" in each.address) == (value.family is Family.IPV6) for each in value.endpoints)
        case Node():
            assert all(parse_address(address) == address for address in value.addresses)


@settings(max_examples=400, deadline=None)
@given(corrupted())
def test_anything_at_all(raw: object) -> None:
    """Whatever JSON stands anywhere in an object, parsing never raises, and what it makes is sound."""
    problems: list[Problem] = []
    for value in parse_manifest(raw, "file", problems):
        assert_sound(value)
    for problem in problems:
        assert len(str(problem)) <= 500
        assert str(problem).isprintable()


@settings(max_examples=150, deadline=None)
@given(corrupted())
def test_anything_at_all_as_bytes(raw: object) -> None:
    """The same from bytes, which says the same unless it refuses the text."""
    text = json.dumps(raw).encode()
    problems: list[Problem] = []
    outcome = parse_json(text, "", problems)
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        assert outcome is None
        return
    expected: list[Problem] = []
    assert parse_object(json.loads(text), "", expected) == outcome
    assert expected == problems
