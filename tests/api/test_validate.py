"""Names and times, as any object has them."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from nftproxy.api.decode import show
from nftproxy.api.parse import parse_object
from nftproxy.model.errors import Problem
from nftproxy.model.objects import ObjectKey, Service
from tests.support.raw import NODE, SERVICE, changed, endpoint_slice, read, service

# ---- names -----------------------------------------------------------------------------------------------------------


def test_no_namespace_is_default() -> None:
    """An object without a namespace is in the namespace default, as for kubectl."""
    assert service("metadata", {"name": "web"})[0].key == ObjectKey("default", "web")


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (None, "Service: metadata.name: is missing"),
        ({}, "Service: metadata.name: is missing"),
        (5, "Service: metadata: 5 is not an object"),
        ({"name": 5}, "Service: metadata.name: 5 is not a string"),
        ({"name": "on", "labels": 5}, "Service default/on: metadata.labels: 5 is not an object"),
        ({"name": True}, "Service: metadata.name: true is not a string"),
        ({"name": "a", "namespace": 1.5}, "Service: metadata.namespace: 1.5 is not a string"),
        ({"name": "Web"}, "Service: metadata.name: 'Web' is not a DNS name that a Service may have"),
        ({"name": "a.b"}, "Service: metadata.name: 'a.b' is not a DNS name that a Service may have"),
        ({"name": "a\n"}, "Service: metadata.name: 'a\\n' is not a DNS name that a Service may have"),
        (
            {"name": "a" * 64},
            f"Service: metadata.name: '{'a' * 59}... is not a DNS name that a Service may have",
        ),
        (
            {"name": "a", "namespace": 'x"; drop'},
            "Service: metadata.namespace: 'x\"; drop' is not a DNS label of at most 63 characters",
        ),
    ],
)
def test_bad_names_cost_the_object(metadata: object, problem: str) -> None:
    """An object whose name or namespace is unreadable or no DNS name is lost and reported."""
    assert read(changed(SERVICE, "metadata", metadata)) == (None, [problem])


def test_slices_nodes_and_cidrs_may_have_dotted_names() -> None:
    """Their names are DNS subdomains."""
    assert endpoint_slice("metadata.name", "web.a-1.x")[0].key.name == "web.a-1.x"
    assert read(changed(NODE, "metadata.name", "node-a.example.com"))[0].name == "node-a.example.com"  # type: ignore[union-attr]


def test_a_nameless_object_is_found_by_its_place() -> None:
    """Problems name the place in the file of an object that has no name."""
    problems: list[Problem] = []
    parse_object({"apiVersion": "v1", "kind": "Node"}, "a.yaml", problems, place="line 7")
    assert list(map(str, problems)) == ["a.yaml: Node (line 7): metadata.name: is missing"]


# ---- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "created"),
    [
        (None, 0),
        ("2024-05-01T10:20:30Z", 1714558830),
        ("2024-05-01T12:20:30+02:00", 1714558830),
        ("2024-05-01T10:20:30.999999Z", 1714558830),
        ("1960-01-01T00:00:00Z", 0),
    ],
)
def test_creation_timestamps(value: object, created: int) -> None:
    """Creation is in whole seconds since the epoch, and 0 for no time and for earlier times."""
    made, problems = service("metadata.creationTimestamp", value)
    assert (made.created, problems) == (created, [])


@pytest.mark.parametrize("value", [5, [], {}, "", "2024-05-01", "2024-05-01T10:20:30", "0001-13-01T00:00:00Z", "\0"])
def test_bad_creation_timestamps(value: object) -> None:
    """A bad time counts as the oldest, and is reported."""
    made, problems = service("metadata.creationTimestamp", value)
    assert made.created == 0
    assert problems == [
        f"Service shop/web: metadata.creationTimestamp: {show(value)} is not a time as in 2024-05-01T10:20:30Z: "
        "taken as the oldest"
    ]


@pytest.mark.parametrize(
    ("value", "created", "count"),
    [
        (datetime(2024, 5, 1, 10, 20, 30, tzinfo=UTC), 1714558830, 0),
        (datetime(2024, 5, 1, 10, 20, 30), 1714558830, 0),  # noqa: DTZ001  # YAML's loaders make these
        (date(2024, 5, 1), 0, 1),
    ],
)
def test_times_that_a_yaml_loader_made(value: object, created: int, count: int) -> None:
    """A datetime in place of text is understood, without a zone as UTC.  A date isn't."""
    problems: list[Problem] = []
    made = parse_object(changed(SERVICE, "metadata.creationTimestamp", value), "", problems)
    assert isinstance(made, Service)
    assert (made.created, len(problems)) == (created, count)
