"""There is a single builder of objects as the API has them, and the parser reads its objects as they were meant."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from nftproxy.api.parse import parse_object
from nftproxy.model.errors import Problem
from nftproxy.model.objects import EndpointSlice, Service
from tests.support import factories, objects

CHECKOUT = Path(__file__).resolve().parents[2]
CONTENT = {"spec", "status", "endpoints", "addressType"}


def built_by_hand(source: str) -> list[int]:
    """The lines where a dict is written down that is a Service, an EndpointSlice, a Node or a ServiceCIDR."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            given = {
                key.value: value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            }
            kind = given.get("kind")
            if isinstance(kind, ast.Constant) and kind.value in objects.API_VERSIONS and CONTENT & given.keys():
                found.append(node.lineno)
    return found


BY_HAND = {"tests/conformance/apiserver/test_watches.py": 1, "tests/api/test_pod_addresses.py": 1}
"""Exceptions: the empty object of a bookmark, and a slice of which the names of pods count."""


@pytest.mark.style
def test_no_object_is_built_by_hand() -> None:
    """Neither tests nor tools write an object down themselves, but for the exceptions above."""
    files = (path for folder in ("tests", "tools") for path in (CHECKOUT / folder).rglob("*.py"))
    found = {str(path.relative_to(CHECKOUT)): len(built_by_hand(path.read_text())) for path in files}
    assert {name: count for name, count in found.items() if count} == BY_HAND


def test_an_object_built_by_hand_is_found() -> None:
    """A dict with a kind and some content is found, and a reference to an object isn't."""
    assert built_by_hand("x = 1\ny = {'kind': 'Node', 'spec': {}}\nz = {'kind': 'Node', 'name': 'a'}") == [2]


def read(raw: objects.Object) -> object:
    """The value that an object is parsed to, without a problem."""
    problems: list[Problem] = []
    outcome = parse_object(raw, "", problems)
    assert problems == []
    return outcome


def test_a_service_is_read_as_it_was_meant() -> None:
    """The short notations of raw objects and of values mean the same."""
    raw = objects.service(spec={"type": "NodePort"}, vips=["10.96.0.10"], ports=["http:80:30080/TCP", "dns:53/UDP"])
    made = factories.service(type="NodePort", ports=["http:80:30080/tcp", "dns:53/udp"])
    assert read(raw) == made
    assert isinstance(made, Service)


def test_a_slice_is_read_as_it_was_meant() -> None:
    """Endpoints have their node, their condition and their hints."""
    raw = objects.endpoint_slice("web-1", "10.1.0.4@node-a", "10.1.1.4@node-b draining zone=a,b node=n", ports=["a:1"])
    made = read(raw)
    assert isinstance(made, EndpointSlice)
    first, second = made.endpoints
    assert (first.address, first.node_name, first.ready, first.zone_hints) == ("10.1.0.4", "node-a", True, None)
    assert (second.ready, second.serving, second.terminating) == (False, True, True)
    assert (second.zone_hints, second.node_hints) == (("a", "b"), ("n",))


def test_a_port_that_is_no_port_is_an_error() -> None:
    """A notation that can't be read is the test's own mistake."""
    with pytest.raises(ValueError, match="is not written as"):
        objects.service(ports=["http"])
