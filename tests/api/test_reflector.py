"""The reflector's requests, and its events, without sockets, clock or randomness."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.api.kinds import KINDS
from nftproxy.api.pauses import Pause, ReflectorTimes
from nftproxy.api.phases import TRANSITIONS, Ending, Phase
from nftproxy.api.problem_tracker import (
    MOST_AT_ONCE,
    MOST_OF_ONE,
    MOST_WINDOWS,
    WHILE,
    ProblemTracker,
)
from nftproxy.api.reflector import MOST_PAGES, PAGE, ApiRequest, Reflector
from nftproxy.api.resources import Resource, resources
from nftproxy.api.responses import (
    ENOUGH,
    LARGEST_OBJECT,
    LONGEST_RETRY_AFTER,
    ErrorStatus,
    Lines,
    PageReader,
    read_change,
    read_error,
)
from nftproxy.model.addresses import Address
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.fairness import LINES_OF_A_NAMESPACE, LINES_OF_ALL, NOTE_EVERY
from nftproxy.model.objects import EndpointSlice, Ignored, Node, ObjectKey, Service, ServiceCIDR
from tests.support import objects
from tests.support.lists import receive_list

NODES, CIDRS, SERVICES, SLICES = resources("node-a")
WEB = ObjectKey("shop", "web")
EXTERNAL = Ignored("Service shop/web", "its type is ExternalName", WEB, (Address("10.96.0.1"),))
ADDRESSLESS = Ignored("Service shop/web", "it has no clusterIP", WEB)
EXPIRED = ErrorStatus(410, "too old")
TOO_LARGE = ErrorStatus(504, "too large", is_too_large=True)
BUSY = ErrorStatus(429, "busy", retry_after=3.0)
HOUR = 3600.0
"""Seconds after which any watch has come to its timeout."""
LONG = 100.0
"""Seconds after which any watch was healthy."""

BEGINNINGS = (',{"metadata":', '}},{"metadata":{', '"items":[{"metadata":')
"""Texts that look like the border between two items."""

Object = dict[str, Any]


def service(name: str = "web", version: str = "7", **spec: Any) -> Object:
    """A Service as it stands in an event."""
    given = {"clusterIP": "10.96.0.1"} | spec
    return objects.service(name, given, ports=[{"port": 80}], metadata={"resourceVersion": version})


def noted(name: str, note: str) -> Object:
    """A Service with an annotation, in the order of the API's fields."""
    metadata = {"name": name, "namespace": "default", "annotations": {"note": note}}
    return {"metadata": metadata, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}


def page(*items: object, version: str = "5", more: str = "", kind: str = "ServiceList") -> bytes:
    """A page of a list."""
    metadata = {"resourceVersion": version, "continue": more}
    return json.dumps({"kind": kind, "metadata": metadata, "items": items}, separators=(",", ":")).encode()


def line(type_: str, value: object) -> bytes:
    """A line of a watch."""
    return json.dumps({"type": type_, "object": value}).encode() + b"\n"


def status(code: int, **more: object) -> Object:
    """A Status."""
    return {"kind": "Status", "code": code, "reason": "", "message": "a reason"} | more


def listed(reflector: Reflector, *bodies: bytes) -> list[Event]:
    """The events when these pages come, each for a request."""
    told: list[Event] = []
    for body in bodies:
        assert not reflector.request(0.0, 0.0).is_watch
        reflector.receive_answer(0.0)
        told += receive_list(reflector, body)
    return told


def watching(version: str = "5", times: ReflectorTimes | None = None) -> Reflector:
    """A reflector of Services that has listed nothing, at a version, and has begun to watch."""
    reflector = Reflector(SERVICES, times)
    listed(reflector, page(version=version))
    assert reflector.request(0.0, 0.0).is_watch
    reflector.receive_answer(0.0)
    return reflector


def summary(request: ApiRequest) -> str:
    """A request, in short."""
    params = request.params
    if request.is_watch:
        return f"watch {params['resourceVersion']}"
    return " ".join(
        [
            "list",
            *(params[name] for name in ("resourceVersion", "resourceVersionMatch") if name in params),
            *(f"limit={params['limit']}" for _ in range("limit" in params)),
            *(f"continue={params['continue']}" for _ in range("continue" in params)),
        ]
    )


def asked(reflector: Reflector, now: float = 0.0) -> str:
    """The next request, in short.  The server answers it."""
    text = summary(reflector.request(now, 0.0))
    reflector.receive_answer(now)
    return text


def answer_version(reflector: Reflector, version: str, now: float = 0.0) -> None:
    """Answer the question for the server's version."""
    assert asked(reflector, now) == "list limit=1"
    assert receive_list(reflector, page(service("any"), version=version, more="x"), now) == []


# What is asked


@pytest.mark.parametrize("resource", [NODES, CIDRS, SERVICES, SLICES], ids=lambda each: each.plural)
def test_lists_and_watches_have_their_selectors(resource: Resource) -> None:
    """Each list and each watch has the selectors of its resource, and the first list takes any cached version."""
    reflector = Reflector(resource)
    first = {"resourceVersion": "0", "limit": str(PAGE)}
    api_version = resource.kind.api_versions[0]
    assert reflector.request(0.0, 0.0) == (api_version, resource.plural, False, resource.selectors | first)
    receive_list(reflector, page(kind=f"{resource.kind.name}List"))
    assert reflector.request(0.0, 0.0).params.items() >= resource.selectors.items()


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, "300"), (0.5, "450"), (0.999, "599")])
def test_watch_parameters(chance: float, seconds: str) -> None:
    """A watch asks for bookmarks, begins at the list's version, and ends at random, as client-go's."""
    reflector = Reflector(NODES)
    listed(reflector, page(kind="NodeList", version="abc"))
    assert reflector.request(0.0, chance).params == {
        "fieldSelector": "metadata.name=node-a",
        "watch": "true",
        "resourceVersion": "abc",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": seconds,
    }


def test_every_phase_has_a_row() -> None:
    """Every phase has a row, from which a watch can follow, and every outcome leads somewhere."""
    assert TRANSITIONS.keys() == set(Phase)
    assert {outcome for row in TRANSITIONS.values() for outcome in row} == set(Ending)
    assert all(Phase.WATCH in row.values() for phase, row in TRANSITIONS.items() if phase is not Phase.WATCH)


# Lists


def test_pages_are_passed_on_as_one_listing() -> None:
    """Pages make a single listing, at the version of the first page, passed on with the last page."""
    reflector = Reflector(SERVICES)
    assert listed(reflector, page(service("a"), version="5", more="x")) == []
    assert asked(reflector) == f"list limit={PAGE} continue=x"
    (told,) = listed(reflector, page(service("b"), version="6"))
    assert isinstance(told, Listed)
    assert [value.key.name for value in told.objects if isinstance(value, Service)] == ["a", "b"]
    assert asked(reflector) == "watch 5"


@given(st.lists(st.integers(0, 200)), st.lists(st.sampled_from(["a", "é", *BEGINNINGS])), st.sampled_from([None, 1]))
def test_lists_in_any_pieces(cuts: list[int], notes: list[str], indent: int | None) -> None:
    """The reader finds the same items however the bytes of a list are cut, and whatever the items contain."""
    metadata = {"resourceVersion": "5", "continue": "x"}
    items = [
        {"metadata": {"labels": {"metadata": note}}, "within": [{"metadata": note}, {"metadata": note}]}
        for note in notes
    ]
    given = {"kind": "ServiceList", "metadata": metadata, "items": items}
    body = json.dumps(given, indent=indent, separators=None if indent else (",", ":")).encode()
    borders = sorted({0, *(cut * len(body) // 200 for cut in cuts), len(body)})
    with mock.patch("nftproxy.api.responses.ENOUGH", 1):
        reader = PageReader(KINDS["Service"])
        found = [raw for begin, end in itertools.pairwise(borders) for raw in reader.take(body[begin:end])]
        last = reader.end()
    assert (last.version, last.continue_token) == ("5", "x")
    assert [json.loads(bytes(raw)) for raw in [*found, *last.items]] == items


def test_items_are_taken_out_while_a_list_comes() -> None:
    """A reader of a list of many megabytes keeps hardly more bytes than those that have just come."""
    body = page(*(service(f"s{number}") for number in range(100_000)))
    reader, count = PageReader(KINDS["Service"]), 0
    tracemalloc.start()
    try:
        for start in range(0, len(body), ENOUGH // 10):
            count += len(reader.take(body[start : start + ENOUGH // 10]))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count + len(reader.end().items) == 100_000
    assert len(body) > 48 * ENOUGH
    assert most < 5 * ENOUGH


def test_no_label_keeps_a_list_together() -> None:
    """However many labels look like the beginning of an item, items are taken out while the list comes."""
    body = page(*[{"metadata": {"labels": {"metadata": "x"}, "annotations": {"a": "b" * 100_000}}}] * 50)
    reader, most = PageReader(KINDS["Service"]), 0
    for start in range(0, len(body), 50_000):
        reader.take(body[start : start + 50_000])
        most = max(most, len(reader._rest))
    assert len(reader.end().items) < 50
    assert most < 2 * ENOUGH


@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"ServiceList","items":[%s],"metadata":{"resourceVersion":"5"}}',
        '{"metadata":{"resourceVersion":"5"},"items":[%s],"kind":"ServiceList"}',
    ],
)
def test_a_list_whose_items_come_first_is_read_at_its_end(text: str) -> None:
    """Without kind and version before the items, nobody knows whether the list can be used: it is kept as a whole."""
    body = (text % ",".join(['{"a":1}'] * 9)).encode()
    with mock.patch("nftproxy.api.responses.ENOUGH", 1):
        reader = PageReader(KINDS["Service"])
        assert reader.take(body) == []
        assert len(reader.end().items) == 9


def test_an_undivided_list_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reflector gives up a list whose items can't be separated."""
    monkeypatch.setattr("nftproxy.api.responses.ENOUGH", 1)
    monkeypatch.setattr("nftproxy.api.responses.LARGEST_OBJECT", 1000)
    reflector = Reflector(SERVICES)
    assert listed(reflector, page() + b" " * 1000) == []
    assert "can't be separated in 1000 bytes" in reflector.pause.reason


def test_a_probe_parses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects in the answer to the question for the server's version don't matter, nor do their faults."""
    monkeypatch.setattr("nftproxy.api.responses.ENOUGH", 1)
    reflector = watching("5")
    reflector.receive_failure("lost", LONG)
    assert asked(reflector) == "list limit=1"
    bad = service(clusterIP=7)
    assert receive_list(reflector, page(bad, bad, bad, version="7")) == []
    assert asked(reflector) == "watch 5"
    assert reflector.problems.count == 0


def test_half_a_page_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of a list that breaks off are in no listing, and their faults aren't reported."""
    monkeypatch.setattr("nftproxy.api.responses.ENOUGH", 1)
    reflector = Reflector(SERVICES)
    assert listed(reflector, page(service("a"), service("b", clusterIP=7), service("c"))[:-1]) == []
    assert (reflector.problems.count, reflector.problems.pop_new(0.0)) == (0, [])
    (told,) = listed(reflector, page(service("d")))
    assert isinstance(told, Listed)
    assert [value.key.name for value in told.objects if isinstance(value, Service)] == ["d"]


def test_a_listing_leaves_out_ignored_objects() -> None:
    """A listing has no object that can't be read, which is reported, and of ignored objects only the reason."""
    reflector = Reflector(SERVICES)
    items = (service("a", type="ExternalName"), service("b", clusterIP=7, clusterIPs=None), 8, service("c"))
    (told,) = listed(reflector, page(*items))
    assert isinstance(told, Listed)
    assert [str(value.key) for value in told.objects if isinstance(value, Service)] == ["shop/c"]
    assert {str(value.key): value.reason for value in told.ignored} == {
        "shop/a": "its type is ExternalName",
        "shop/b": "it has no clusterIP",
    }
    assert reflector.problems.count == len(reflector.problems.pop_new(0.0)) > 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<html>",
        b"\xff",
        b"[" * 100_000,
        page(service())[:-3],
        json.dumps(status(500)).encode(),
        page(kind="NodeList"),
        page(version=""),
        b'{"kind":"ServiceList","metadata":{"resourceVersion":"5"}}',
        b'{"kind":"ServiceList","metadata":{"resourceVersion":5},"items":[]}',
        b'{"kind":"ServiceList","metadata":{"resourceVersion":"5"},"items":{}}',
    ],
)
def test_an_answer_without_a_list_is_a_failure(body: bytes) -> None:
    """An answer that isn't a complete list of the kind is a failure, without events."""
    for enough in (ENOUGH, 1):
        with mock.patch("nftproxy.api.responses.ENOUGH", enough):
            reflector = Reflector(SERVICES)
            assert listed(reflector, body) == []
            assert reflector.pause.shortest > 0
            assert "that can't be read" in reflector.pause.reason or "should be" in reflector.pause.reason
            assert asked(reflector) == f"list 0 limit={PAGE}"


def test_an_empty_list_may_be_null() -> None:
    """A server that has no objects may say so with null, as Go does."""
    body = b'{"kind":"ServiceList","metadata":{"resourceVersion":"5"},"items":null}'
    assert listed(Reflector(SERVICES), body) == [Listed(Service, ())]


@pytest.mark.parametrize(
    ("failures", "then"),
    [
        ([EXPIRED], f"list limit={PAGE}"),
        ([TOO_LARGE], f"list limit={PAGE}"),
        ([EXPIRED, EXPIRED], f"list limit={PAGE}"),
        ([ErrorStatus(500, "")], f"list 0 limit={PAGE}"),
        ([ErrorStatus(504, "a gateway's")], f"list 0 limit={PAGE}"),
        ([BUSY, BUSY, BUSY], f"list 0 limit={PAGE}"),
        ([ErrorStatus(404, "")], f"list 0 limit={PAGE}"),
    ],
)
def test_refused_lists(failures: Sequence[ErrorStatus], then: str) -> None:
    """A list whose version is gone is followed by the newest list, any other failure by the same list."""
    reflector = Reflector(SERVICES)
    for failure in failures:
        reflector.request(0.0, 0.0)
        assert reflector.receive_error(failure, 0.0) == []
    assert reflector.pause.longest - max(each.retry_after for each in failures) == 2.0 ** (len(failures) - 1)
    assert asked(reflector) == then


def test_a_page_that_fails() -> None:
    """A page is asked for again, after a second failure from the first page, and if it has expired without pages."""
    reflector = Reflector(SERVICES)
    listed(reflector, page(service("a"), more="x"))
    reflector.request(0.0, 0.0)
    reflector.receive_error(ErrorStatus(500, ""), 0.0)
    assert asked(reflector) == f"list limit={PAGE} continue=x"
    reflector.receive_error(ErrorStatus(500, ""), 0.0)
    listed(reflector, page(service("b"), more="y"))
    assert asked(reflector) == f"list limit={PAGE} continue=y"
    reflector.receive_error(EXPIRED, 0.0)
    assert asked(reflector) == "list"
    (told,) = listed(reflector, page(service("c")))
    assert isinstance(told, Listed)
    assert len(told.objects) == 1


def test_never_back_in_time() -> None:
    """After 410 a listing must be as new as the known version, and if that fails, the newest."""
    reflector = watching("5")
    reflector.receive_data(line("BOOKMARK", service(version="9")), 0.0)
    reflector.receive_error(EXPIRED, 0.0)
    assert asked(reflector) == "list 9 NotOlderThan"
    reflector.receive_error(TOO_LARGE, 0.0)
    assert asked(reflector) == f"list limit={PAGE}"
    listed(reflector, page(version="3"))
    assert asked(reflector) == "watch 3"


def test_a_forbidden_optional_kind_counts_as_empty() -> None:
    """Nothing waits for it: it counts as empty, once, and is asked for again until it may be listed."""
    reflector = Reflector(CIDRS)
    reflector.request(0.0, 0.5)
    assert reflector.receive_error(ErrorStatus(403, "Forbidden"), 0.0) == [Listed(ServiceCIDR, ())]
    text = "may not be listed: going on without them"
    assert reflector.problems.pop_new(0.0) == [Problem("", "servicecidrs", "", text, Code.API_GOING_WITHOUT)]
    for _ in range(3):
        reflector.request(1.0, 0.5)
        assert reflector.receive_error(ErrorStatus(403, "Forbidden"), 1.0) == []
    assert list(reflector.problems.pop_new(0.0)) == []


def test_objects_of_a_kind_that_becomes_forbidden_stay() -> None:
    """The known objects continue to count."""
    reflector = Reflector(CIDRS)
    reflector.request(0.0, 0.5)
    assert receive_list(reflector, page(kind="ServiceCIDRList"))
    reflector.request(1.0, 0.5)
    reflector.receive_error(ErrorStatus(410, "Gone"), 1.0)
    reflector.request(2.0, 0.5)
    assert reflector.receive_error(ErrorStatus(403, "Forbidden"), 2.0) == []


def test_a_forbidden_required_kind_is_waited_for() -> None:
    """Without Services there is nothing to go on with."""
    reflector = Reflector(SERVICES)
    reflector.request(0.0, 0.5)
    assert reflector.receive_error(ErrorStatus(403, "Forbidden"), 0.0) == []


def test_a_kind_that_is_not_there() -> None:
    """Where no version of a kind is known, there is nothing to list: reported once, looked for seldom, found later."""
    reflector = Reflector(CIDRS, ReflectorTimes(absent=60.0))
    for api_version, told in [
        ("networking.k8s.io/v1", []),
        ("networking.k8s.io/v1beta1", [Listed(ServiceCIDR, ())]),
        ("networking.k8s.io/v1", []),
        ("networking.k8s.io/v1beta1", []),
    ]:
        assert reflector.request(0.0, 0.0).api_version == api_version
        assert reflector.receive_error(ErrorStatus(404, ""), 0.0) == told
        wanted = 60.0 if api_version.endswith("beta1") else 0.0
        assert reflector.pause[:2] == (wanted, wanted)
        assert not (reflector.pause.reason and reflector.pause.is_fault)
    reflector.request(0.0, 0.0)
    reflector.receive_error(ErrorStatus(404, ""), 0.0)
    assert reflector.request(0.0, 0.0).api_version == "networking.k8s.io/v1beta1"
    receive_list(reflector, page(kind="ServiceCIDRList"))
    assert reflector.request(0.0, 0.0)[:3] == ("networking.k8s.io/v1beta1", "servicecidrs", True)
    reflector.receive_error(ErrorStatus(404, ""), 0.0)
    assert reflector.request(0.0, 0.0)[:3] == ("networking.k8s.io/v1", "servicecidrs", False)


# Watches


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (line("BOOKMARK", service()), []),
        (line("DELETED", service()), [Removed(Service, WEB)]),
        (line("MODIFIED", service(type="ExternalName")), [Removed(Service, WEB, EXTERNAL)]),
        (line("MODIFIED", service(clusterIP=7, clusterIPs=None, ports=8)), [Removed(Service, WEB, ADDRESSLESS)]),
        (line("ADDED", {"metadata": {"namespace": "shop", "name": "web", "resourceVersion": "7"}}), None),
        (line("ADDED", {"metadata": {"name": "No name", "resourceVersion": "7"}}), []),
        (line("SURPRISE", service()), []),
        (b"\n \n", []),
    ],
)
def test_events(data: bytes, told: list[Event] | None) -> None:
    """An object that isn't for this proxy any more, or can't be read, is removed like a deleted object."""
    reflector = watching()
    events = reflector.receive_data(data, 0.0)
    assert events == ([Removed(Service, WEB, ADDRESSLESS)] if told is None else told)
    assert reflector.is_open


@pytest.mark.parametrize("type_", ["ADDED", "MODIFIED"])
def test_new_and_changed_objects_are_put(type_: str) -> None:
    """An object that has come or changed is put, and the version goes on."""
    reflector = watching()
    (event,) = reflector.receive_data(line(type_, service()), 0.0)
    assert isinstance(event, Put)
    assert isinstance(event.object, Service)
    assert event.object.key == WEB
    reflector.receive_failure("lost", 0.0)
    answer_version(reflector, "7")
    assert asked(reflector) == "watch 7"


def test_other_kinds() -> None:
    """A removed object has the key by which the state knows it: a Node's is its name."""
    reflector = Reflector(NODES)
    receive_list(reflector, page(kind="NodeList"))
    reflector.request(0.0, 0.0)
    node = {"metadata": {"name": "node-a"}}
    assert reflector.receive_data(line("ADDED", node) + line("DELETED", node), 0.0) == [
        Put(Node("node-a")),
        Removed(Node, "node-a"),
    ]
    assert SLICES.model is EndpointSlice


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (line("ADDED", service(version="9")) + line("ADDED", service(version="6")), "6"),
        (line("DELETED", service(version="x-8")), "x-8"),
        (line("BOOKMARK", service(version="8")), "8"),
        (line("SURPRISE", service(version="8")), "5"),
        (line("ADDED", {"metadata": {"name": "a"}}), "5"),
        (line("ADDED", {"metadata": {"name": "a", "resourceVersion": 8}}), "5"),
        (line("ADDED", 8), "5"),
    ],
)
def test_goes_on_from_the_last_version(data: bytes, version: str) -> None:
    """The next watch begins at the last version that was understood, larger or not."""
    reflector = watching("5")
    reflector.receive_data(data, 0.0)
    reflector.receive_end(HOUR)
    assert asked(reflector) == f"watch {version}"


@pytest.mark.parametrize(
    ("failure", "then"),
    [
        (EXPIRED, "list 5 NotOlderThan"),
        (TOO_LARGE, "list 5 NotOlderThan"),
        (ErrorStatus(400, ""), "list 5 NotOlderThan"),
        (ErrorStatus(404, ""), "list 5 NotOlderThan"),
        (ErrorStatus(422, ""), "list 5 NotOlderThan"),
        (BUSY, "watch 5"),
        (ErrorStatus(401, ""), "watch 5"),
        (ErrorStatus(403, ""), "watch 5"),
        (ErrorStatus(500, ""), "watch 5"),
        (ErrorStatus(503, ""), "watch 5"),
        (ErrorStatus(504, ""), "watch 5"),
        (ErrorStatus(0, ""), "watch 5"),
    ],
)
def test_refused_watches(failure: ErrorStatus, then: str) -> None:
    """A watch that can't ever go on is followed by a listing, and any other by the same watch, after a pause."""
    reflector = watching("5")
    assert reflector.receive_error(failure, 0.0) == []
    assert not reflector.is_open
    code = Code.API_DENIED if failure.code in (401, 403) else Code.API_UNHELPFUL
    assert reflector.pause == Pause(failure.retry_after + 0.5, failure.retry_after + 1.0, failure.message, code=code)
    assert asked(reflector) == then


def test_error_events() -> None:
    """An ERROR counts like the answer, after the events before it.  The events after it are ignored."""
    reflector = watching("5")
    data = line("ADDED", service()) + line("ERROR", status(410)) + line("DELETED", service())
    (event,) = reflector.receive_data(data, 0.0)
    assert isinstance(event, Put)
    assert not reflector.is_open
    assert asked(reflector) == "list 7 NotOlderThan"


@pytest.mark.parametrize(
    "data",
    [
        b"<html>\n",
        b"\xff\n",
        b"[]\n",
        b'{"type":"ADDED"}\n',
        b'{"object":{}}\n',
        b'{"type":"ADD\n',
        b"[" * 100_000 + b"\n",
        pytest.param(b" " * (LARGEST_OBJECT + 1), id="endless"),
    ],
)
def test_unreadable_lines(data: bytes) -> None:
    """A line that is no event ends the watch, and the second in a row leads to a listing."""
    reflector = watching("5")
    assert len(reflector.receive_data(line("ADDED", service()), 0.0)) == 1
    assert reflector.receive_data(data, 0.0) == []
    assert not reflector.is_open
    answer_version(reflector, "9")
    assert asked(reflector) == "watch 7"
    reflector.receive_data(data, 0.0)
    assert asked(reflector) == "list 7 NotOlderThan"


def test_a_cut_line() -> None:
    """A stream that ends in the middle of a line is a failure, however cleanly it ends."""
    reflector = watching("5")
    assert len(reflector.receive_data(line("ADDED", service()) + line("DELETED", service())[:-1], 0.0)) == 1
    reflector.receive_end(0.0)
    assert reflector.pause == Pause(0.5, 1.0, "the watch ended in the middle of a line", is_cut=True)
    answer_version(reflector, "7")
    assert asked(reflector) == "watch 7"
    reflector.receive_end(HOUR)
    assert reflector.pause == Pause()


# Pauses and doubts


def test_failures_count_until_a_watch_is_healthy() -> None:
    """Neither a listing nor a short watch makes up for failures, only a watch that lives for some seconds."""
    reflector = watching("5", ReflectorTimes(healthy=2.0))
    pauses = []
    for lived in (0.0, 1.9, 1.9, 2.0, 1.9):
        reflector.receive_error(EXPIRED, lived)
        pauses.append(reflector.pause.longest)
        listed(reflector, page())
        asked(reflector)
    assert pauses == [1.0, 2.0, 4.0, 1.0, 2.0]


def test_pauses_grow_with_each_refused_watch() -> None:
    """A watch that ends with a failure counts, also after events."""
    reflector = watching("5", ReflectorTimes(healthy=5.0))
    for longest in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        reflector.receive_data(line("BOOKMARK", service(version="9")) + line("ERROR", status(429)), 4.0)
        assert (reflector.pause.shortest, reflector.pause.longest) == (longest / 2, longest)
        answer_version(reflector, "9")
        asked(reflector)


def test_healthy_ends() -> None:
    """After a watch that ends at its timeout, the next begins at once.  After a shorter watch there is a pause."""
    reflector = watching("5", ReflectorTimes(healthy=2.0))
    reflector.receive_end(HOUR)
    assert reflector.pause == Pause()
    assert asked(reflector) == "watch 5"
    reflector.receive_end(1.9)
    assert (reflector.pause.shortest, reflector.pause.longest) == (0.5, 1.0)


def test_a_cut_that_is_mended_at_once_is_no_fault() -> None:
    """A balancer that cuts an idle watch is no fault.  A failure of the next request is, and of a short watch."""
    reflector = watching("5", ReflectorTimes(healthy=5.0))
    reflector.receive_failure("the connection broke", 60.0)
    assert (reflector.pause.reason, reflector.pause.is_fault) == ("the connection broke", False)
    assert asked(reflector).startswith("list limit=1")
    reflector.receive_failure("no connection", 61.0)
    assert reflector.pause.is_fault
    short = watching("5", ReflectorTimes(healthy=5.0))
    short.receive_failure("the connection broke", 4.0)
    assert (short.pause.is_fault, short.pause.is_cut) == (True, True)
    unreadable = watching("5")
    unreadable.receive_data(b"<html>\n", 4.0)
    assert (unreadable.pause.is_fault, unreadable.pause.is_cut) == (True, False)


@pytest.mark.parametrize(("lived", "then"), [(299.5, "watch 5"), (298.0, "list limit=1")])
def test_an_end_before_its_time_is_doubted(lived: float, then: str) -> None:
    """A watch that ends before the timeout that it asked for may have been ended by a server that goes away."""
    reflector = watching("5")
    reflector.receive_end(lived)
    assert reflector.pause == Pause()
    assert asked(reflector) == then


def test_repeated_refusals_lead_to_a_listing() -> None:
    """Watches that are refused for no clear reason lead to a listing at the 2nd, 4th, 8th in a row."""
    reflector = watching("5")
    verbs = []
    for _ in range(9):
        reflector.receive_error(ErrorStatus(500, ""), LONG)
        verb = asked(reflector)
        verbs.append(verb.split()[0])
        if verb.startswith("list"):
            assert verb == "list 5 NotOlderThan"
            receive_list(reflector, page())
            asked(reflector)
    assert verbs == "watch list watch list watch watch watch list watch".split()
    reflector.receive_data(line("BOOKMARK", service()), 0.0)
    reflector.receive_error(ErrorStatus(500, ""), LONG)
    assert asked(reflector) == "watch 7"


# Servers that go and come back


def test_attempts_without_an_answer_follow_each_other_soon() -> None:
    """However long the server is away, the next attempt comes within seconds, or when another is answered."""
    reflector = watching("5")
    reflector.receive_failure("lost", LONG)
    pauses = [reflector.pause]
    for _ in range(100):
        reflector.request(LONG, 0.0)
        reflector.receive_failure("refused", LONG)
        pauses.append(reflector.pause)
    assert [pause.longest for pause in pauses[:5]] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert all(pause.shortest == pause.longest / 2 and pause.longest <= 3.0 for pause in pauses)
    assert all(pause.awaits_server for pause in pauses)


def test_an_attempt_that_took_its_time_was_pause_enough() -> None:
    """The seconds of an attempt that timed out count as a pause, since its SYN was on the way for as long."""
    reflector = watching("5")
    for _ in range(10):
        reflector.request(0.0, 0.0)
        reflector.receive_failure("timed out", 5.0)
    assert (reflector.pause.shortest, reflector.pause.longest) == (0.0, 0.0)
    reflector.request(0.0, 0.0)
    reflector.receive_failure("timed out", 2.0)
    assert (reflector.pause.shortest, reflector.pause.longest) == (0.0, 1.0)


@pytest.mark.parametrize("refused_before", [0, 8])
def test_lists_soon_after_an_outage(refused_before: int) -> None:
    """A server that is back and answers 410 is listed within a second, after any number of earlier failures."""
    reflector = watching("5")
    for _ in range(refused_before):
        reflector.receive_error(BUSY, 0.0)
        asked(reflector)
    for now in range(12):
        reflector.request(float(now), 0.0)
        reflector.receive_failure("refused", float(now))
    answer_version(reflector, "6", 12.0)
    assert reflector.pause == Pause()
    assert asked(reflector, 12.0) == "watch 5"
    reflector.receive_data(line("ERROR", status(410)), 12.0)
    assert (reflector.pause.shortest, reflector.pause.longest, reflector.pause.awaits_server) == (0.5, 1.0, False)
    assert asked(reflector, 13.0) == "list 5 NotOlderThan"


def test_a_server_that_comes_and_goes_is_not_a_new_one() -> None:
    """Earlier refusals still count if the server was away for a moment only."""
    reflector = watching("5")
    for _ in range(3):
        reflector.receive_error(BUSY, 0.0)
        asked(reflector)
    reflector.receive_failure("lost", 0.0)
    reflector.request(0.0, 0.0)
    reflector.receive_failure("refused", 1.0)
    answer_version(reflector, "6", 2.0)
    asked(reflector, 2.0)
    reflector.receive_error(BUSY, 2.0)
    assert reflector.pause.longest - BUSY.retry_after == 16.0


def test_accepted_and_dropped_again_and_again() -> None:
    """A connection that is lost soon after its answer has cost the server something, so the pauses grow."""
    reflector = watching("5")
    pauses = []
    for _ in range(4):
        reflector.receive_failure("reset", 0.1)
        pauses.append(reflector.pause.longest)
        answer_version(reflector, "5")
        asked(reflector)
    assert pauses == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("lived", "brought", "longest"),
    [
        (1.0, [], 3.0),
        (4.9, [], 3.0),
        (0.0, ["BOOKMARK"], 3.0),
        (0.0, ["ADDED"], 3.0),
        (0.9, [], 30.0),
        (0.9, ["SURPRISE"], 30.0),
    ],
)
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_watch_that_is_always_cut_lags_by_seconds(
    lived: float, brought: Sequence[str], longest: float, *, is_clean: bool
) -> None:
    """Behind a balancer that cuts every watch, the next useful watch comes within 3 s, and a useless one within 30."""
    reflector, now, pauses = watching("1"), 0.0, []
    for version in range(2, 10):
        for type_ in brought:
            reflector.receive_data(line(type_, service(version=str(version))), now)
        now += lived
        if is_clean:
            reflector.receive_end(now)
        else:
            reflector.receive_failure("reset", now)
        pause = reflector.pause
        pauses.append(pause.longest)
        assert (pause.shortest, pause.is_fault, pause.awaits_server) == (pause.longest / 2, True, False)
        if asked(reflector, now).startswith("list"):
            receive_list(reflector, page(version=str(version)), now)
            asked(reflector, now)
    assert pauses == [min(2.0**number, longest) for number in range(8)]


def test_other_failures_count_beside_cuts() -> None:
    """Cuts of useful watches make no other pause longer or shorter, and a healthy watch ends all."""
    reflector, busy = watching("5"), BUSY._replace(retry_after=0.0)
    for expected in (1.0, 2.0, 4.0):
        reflector.receive_failure("reset", 2.0)
        answer_version(reflector, "5")
        asked(reflector)
        reflector.receive_error(busy, 0.0)
        assert reflector.pause.longest == expected
        asked(reflector)
    reflector.receive_failure("reset", LONG)
    answer_version(reflector, "5")
    asked(reflector)
    reflector.receive_failure("reset", 2.0)
    assert reflector.pause.longest == 1.0


def test_silence() -> None:
    """A watch that is silent for too long is no fault for the log, and a silent list is."""
    reflector = watching("5")
    reflector.receive_silence("no data", LONG)
    assert reflector.pause.awaits_server
    assert not reflector.pause.is_fault
    reflector = Reflector(SERVICES)
    asked(reflector)
    reflector.receive_silence("no data", LONG)
    assert reflector.pause.is_fault


# Servers that have gone back in time


@pytest.mark.parametrize(
    ("known", "server", "then"),
    [
        ("1000", "1000", "watch 1000"),
        ("1000", "1001", "watch 1000"),
        ("1000", "999", f"list limit={PAGE}"),
        ("99", "1000", "watch 99"),
        ("18446744073709551616", "18446744073709551615", f"list limit={PAGE}"),
        ("1000", "abc", "watch 1000"),
        ("abc", "1", "watch abc"),
        ("1000", "0999", "watch 1000"),
        ("1000", "٩٩٩", "watch 1000"),
    ],
)
def test_a_server_that_is_behind(known: str, server: str, then: str) -> None:
    """After a broken connection the server's version is probed.  Only a server that is behind is listed anew."""
    reflector = watching(known)
    reflector.receive_failure("lost", LONG)
    answer_version(reflector, server)
    assert reflector.pause.longest == (1.0 if then.startswith("list") else 0.0)
    assert asked(reflector) == then


def test_objects_missing_after_a_restore_are_removed() -> None:
    """The listing after a restore replaces all that was known, and the watch goes on from the server's version."""
    reflector = Reflector(SERVICES)
    listed(reflector, page(service("a"), service("b"), version="900"))
    asked(reflector)
    reflector.receive_failure("lost", LONG)
    answer_version(reflector, "7")
    (told,) = listed(reflector, page(service("a"), version="7"))
    assert isinstance(told, Listed)
    assert len(told.objects) == 1
    assert asked(reflector) == "watch 7"


@pytest.mark.parametrize(("resource", "kind"), [(NODES, "NodeList"), (CIDRS, "ServiceCIDRList")])
def test_a_small_resource_is_its_own_question(resource: Any, kind: str) -> None:
    """A small resource is listed after a broken connection, instead of a probe."""
    reflector = Reflector(resource)
    listed(reflector, page(kind=kind, version="9"))
    asked(reflector)
    reflector.receive_failure("lost", LONG)
    assert asked(reflector) == f"list limit={PAGE}"
    receive_list(reflector, page(kind=kind, version="3"), LONG)
    assert asked(reflector) == "watch 3"


def test_the_question_is_asked_again_until_it_is_answered() -> None:
    """No watch begins before the server's version is known, or a listing has made the question needless."""
    reflector = watching("5")
    reflector.receive_failure("lost", LONG)
    assert asked(reflector) == "list limit=1"
    reflector.receive_error(BUSY, LONG)
    assert asked(reflector) == "list limit=1"
    reflector.receive_failure("lost", LONG)
    assert asked(reflector) == "list limit=1"
    reflector.receive_error(ErrorStatus(500, ""), LONG)
    assert asked(reflector) == "list limit=1"
    reflector.receive_error(ErrorStatus(500, ""), LONG)
    assert asked(reflector) == "list 5 NotOlderThan"
    receive_list(reflector, page(version="8"), LONG)
    assert asked(reflector) == "watch 8"


def test_a_refused_watch_needs_no_question() -> None:
    """A watch that the server refuses by its status was never begun: nothing is broken, and nothing is asked."""
    reflector = watching("5")
    reflector.receive_error(BUSY, 0.0)
    assert asked(reflector) == "watch 5"


def test_a_watch_that_is_refused_for_long_is_doubted() -> None:
    """A server that denies a watch for some seconds may have been restored meanwhile: its version is probed."""
    reflector, soon = watching("900"), BUSY._replace(retry_after=0.0)
    for _ in range(3):
        reflector.receive_error(soon, 0.0)
        assert asked(reflector) == "watch 900"
    reflector.receive_error(soon, 0.0)
    answer_version(reflector, "7")
    assert asked(reflector) == f"list limit={PAGE}"
    reflector = watching("900")
    reflector.receive_error(soon._replace(retry_after=5.0), 0.0)
    answer_version(reflector, "901")
    assert asked(reflector) == "watch 900"


# Lists without an end


def test_a_list_of_too_many_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing with endless pages is given up, begins anew, later each time, and deletes nothing."""
    assert MOST_PAGES * PAGE >= 1_000_000
    monkeypatch.setattr("nftproxy.api.reflector.MOST_PAGES", 3)
    reflector = Reflector(SERVICES)
    for longest in (1.0, 2.0):
        assert listed(reflector, *[page(service("a"), more="x")] * 3) == []
        assert (reflector.pause.longest, reflector.pause.is_fault) == (longest, True)
        assert "3 pages" in reflector.pause.reason
    assert asked(reflector) == f"list limit={PAGE}"
    assert len(listed(reflector, page(service("a"), more="x"), page(service("b")))) == 1


def test_a_list_that_takes_too_long() -> None:
    """A listing that always has another page is given up after a while."""
    reflector = Reflector(SERVICES, ReflectorTimes(longest_list=60.0))
    for now in (0.0, 59.0, 60.0):
        reflector.request(now, 0.0)
        reflector.receive_answer(now)
        assert not reflector.pause.reason
        receive_list(reflector, page(service("a"), more="x"), now)
    assert "60 s" in reflector.pause.reason
    assert asked(reflector) == f"list limit={PAGE}"


@pytest.mark.slow
def test_no_sum_of_bytes_keeps_a_list_from_loading() -> None:
    """A tenant's annotations of 1 GiB in all leave every object in the listing, and hardly a byte in memory."""
    big = json.dumps(noted("big", "x" * 2**18)).encode()
    head, _, tail = page(noted("a", "")).partition(b"[")
    reflector, count = Reflector(SERVICES), 2**12
    reflector.request(0.0, 0.0)
    reflector.receive_answer(0.0)
    tracemalloc.start()
    try:
        reflector.receive_list_data(head + b"[", 0.0)
        for _ in range(count):
            reflector.receive_list_data(big + b",", 0.0)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    reflector.receive_list_data(tail, 0.0)
    (told,) = reflector.receive_list_end(0.0)
    assert isinstance(told, Listed)
    assert sorted(value.key.name for value in told.objects if isinstance(value, Service)) == ["a", "big"]
    assert count * len(big) > 2**30
    assert most < 16 * ENOUGH


@pytest.mark.parametrize("where", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_that_is_too_large_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, where: int, indent: int | None
) -> None:
    """An object above the bound costs the listing only itself, wherever it is, and however the bytes are cut."""
    monkeypatch.setattr("nftproxy.api.responses.ENOUGH", 100)
    monkeypatch.setattr("nftproxy.api.responses.LARGEST_OBJECT", 10_000)
    monkeypatch.setattr("nftproxy.api.reflector.LARGEST_OBJECT", 10_000)
    monkeypatch.setattr("nftproxy.api.responses._BEGINNING", 300)
    items = [noted("a", ""), noted("b", "")]
    items.insert(where, noted("big", '},{"metadata":{"name":"no"}}]}' * 2_000))
    body = json.dumps(json.loads(page(*items)), indent=indent, separators=None if indent else (",", ":")).encode()
    for step in (1, 97, 4_000):
        reflector = Reflector(SERVICES)
        reflector.request(0.0, 0.0)
        reflector.receive_answer(0.0)
        for start in range(0, len(body), step):
            reflector.receive_list_data(body[start : start + step], 0.0)
        (told,) = reflector.receive_list_end(0.0)
        assert isinstance(told, Listed)
        assert [value.key.name for value in told.objects if isinstance(value, Service)] == ["a", "b"]
        assert [str(each) for each in reflector.problems.pop_new(0.0)] == [
            "Service default/big: has more than 10000 bytes, and is left out"
        ]


@pytest.mark.parametrize("end", [b"", b"]", b"}]"])
def test_half_a_list_is_no_list_even_behind_an_object_that_is_too_large(
    monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    """A list that breaks off within an object that is left out deletes nothing."""
    monkeypatch.setattr("nftproxy.api.responses.ENOUGH", 100)
    monkeypatch.setattr("nftproxy.api.responses.LARGEST_OBJECT", 10_000)
    reflector = Reflector(SERVICES)
    body = page(noted("a", ""), noted("big", "x" * 20_000))
    assert listed(reflector, body[: body.rindex(b"}}]}")] + end) == []
    assert "can't be read" in reflector.pause.reason


# Bytes and lines


@given(st.lists(st.integers(0, 200)), st.data())
def test_any_chunks(cuts: list[int], data: st.DataObject) -> None:
    """Events are the same however the bytes are cut into chunks."""
    names = data.draw(st.lists(st.sampled_from("abcé\u2028"), min_size=1, max_size=4))
    lines = [line("DELETED", service("web", note=name)) for name in names]
    stream = b"".join(lines)
    borders = sorted({0, *(cut * len(stream) // 200 for cut in cuts), len(stream)})
    reflector = watching()
    told = [
        event for begin, end in itertools.pairwise(borders) for event in reflector.receive_data(stream[begin:end], 0.0)
    ]
    assert told == [Removed(Service, WEB)] * len(lines)


def test_single_bytes_cost_no_copies_of_the_line() -> None:
    """The bytes of a line are added to the line's rest without a copy of it, so that a byte costs a byte's work."""
    lines, size = Lines(), 2**20
    lines.split(b"x" * size)
    tracemalloc.start()
    try:
        for _ in range(1_000):
            assert lines.split(b"x") == []
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lines.split(b"\n") == [b"x" * (size + 1_000)]
    assert most < 1.5 * size, "a copy beside the rest would be twice the size"


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """No bytes make the reflector raise, or yield events."""
    reflector = watching()
    assert reflector.receive_data(data, 0.0) == []
    reflector.receive_end(0.0)
    reflector = Reflector(SERVICES)
    assert listed(reflector, data) == []
    assert read_error(data, 500).code == 500


def test_lines() -> None:
    """Only newlines end lines, and empty lines are skipped."""
    lines = Lines()
    assert lines.split("a\u2028b\x85\r".encode()) == []
    assert lines.is_cut
    assert lines.split(b"\n\nc\nd") == ["a\u2028b\x85\r".encode(), b"c"]
    assert lines.split(b"\n") == [b"d"]
    assert not lines.is_cut


def test_reads_changes() -> None:
    """A line is a type, an object and its version."""
    change = read_change(line("ADDED", service(version="12")))
    assert (change.type, change.version, json.loads(bytes(change.object))) == ("ADDED", "12", service(version="12"))


@pytest.mark.parametrize(
    ("body", "code", "header", "wanted"),
    [
        (status(500), 500, "", (500, 0.0, False)),
        (status(429, details={"retryAfterSeconds": 2}), 0, "", (429, 2.0, False)),
        (status(429, details={"retryAfterSeconds": 2}), 429, "5", (429, 5.0, False)),
        (status(429), 429, "Fri, 20 Nov 2026 10:00:00 GMT", (429, 0.0, False)),
        (status(429), 429, "1000000000000", (429, LONGEST_RETRY_AFTER, False)),
        (status(429, details={"retryAfterSeconds": -5}), 429, "", (429, 0.0, False)),
        (status(504, details={"causes": [{"reason": "ResourceVersionTooLarge"}]}), 0, "", (504, 0.0, True)),
        (status(504, details={"causes": [{"reason": "Other"}, {}]}), 0, "", (504, 0.0, False)),
        (status(0, reason="Expired"), 0, "", (410, 0.0, False)),
        (status(0, reason="Gone"), 0, "", (410, 0.0, False)),
        (status(0, reason="Whatever"), 0, "", (0, 0.0, False)),
        ({"code": "x"}, 503, "", (503, 0.0, False)),
        ("text", 403, "", (403, 0.0, False)),
        (None, 403, "", (403, 0.0, False)),
    ],
)
def test_refusals(body: object, code: int, header: str, wanted: tuple[int, float, bool]) -> None:
    """A failure is read from the HTTP status, the header Retry-After, and the Status, as far as they are there."""
    failure = read_error(json.dumps(body).encode(), code, header)
    assert (failure.code, failure.retry_after, failure.is_too_large) == wanted


@pytest.mark.parametrize(
    "body", [b"<h1>\nno\x1b[31m</h1>" + b"x" * 9999, json.dumps(status(1, message="\n" * 999)).encode()]
)
def test_messages_for_the_log(body: bytes) -> None:
    """Any message of a server is a single short line in the log, without control characters."""
    message = read_error(body, 500).message
    assert message.isprintable()
    assert len(message) < 1000


# Problems


def problem(text: str) -> Problem:
    """A fault of a Service."""
    return Problem("", "Service shop/web", "", text, Code.SERVICE_FIELD)


def test_complains_once_of_each_fault() -> None:
    """A fault is said when it is new to its object, not when the object is written or listed again."""
    tracker = ProblemTracker()
    said = []
    for texts in (["a"], ["a"], ["a", "b"], ["b"], [], ["b"]):
        tracker.record(WEB, [problem(text) for text in texts])
        said.append([each.message for each in tracker.pop_new(0.0)])
        assert tracker.count == len(texts)
    assert said == [["a"], [], ["b"], [], [], ["b"]]


def test_a_listing_clears_the_faults_of_missing_objects() -> None:
    """After a listing, the objects in it keep their faults, and all other objects have none."""
    tracker = ProblemTracker()
    for name in ("a", "b"):
        tracker.record(ObjectKey("shop", name), [problem("x")])
    tracker.pop_new(0.0)
    tracker.begin_listing()
    tracker.record(ObjectKey("shop", "b"), [problem("x")])
    tracker.end_listing()
    assert tracker.pop_new(0.0) == []
    assert tracker.count == 1


def test_notes_are_said_and_not_counted() -> None:
    """A note is logged like a fault, but nothing is lost by it, and it keeps no fault of the object from the log."""
    tracker = ProblemTracker()
    notes = [Problem("", "Service shop/web", "", str(number), Code.OLD_SPELLING) for number in range(MOST_OF_ONE)]
    tracker.record(WEB, [*notes, problem("x")])
    assert [each.message for each in tracker.pop_new(0.0)] == ["x", *map(str, range(MOST_OF_ONE - 1))]
    assert tracker.count == 1
    tracker.record(WEB, notes)
    assert tracker.count == 0


def test_complaints_are_bounded() -> None:
    """Neither a single bad object nor thousands of them fill the log."""
    tracker = ProblemTracker()
    tracker.record(WEB, [problem(str(number)) for number in range(1000)])
    assert len(tracker.pop_new(0.0)) == tracker.count == MOST_OF_ONE
    for number in range(1000):
        tracker.record(ObjectKey("shop", f"s{number}"), [problem("x")])
    said = tracker.pop_new(0.0)
    assert len(said) == MOST_AT_ONCE + 1
    assert (said[-1].message, said[-1].code) == (
        f"and {1000 - MOST_AT_ONCE} more problems like these",
        Code.MORE_PROBLEMS,
    )
    assert tracker.pop_new(0.0) == []


def test_an_object_that_is_written_again_and_again_is_bounded() -> None:
    """Ten of an object's thousand faults in a minute are logged, then the number of the rest, and others' faults."""
    tracker, said = ProblemTracker(), list[str]()
    for number in range(1000):
        tracker.record(WEB, [problem(f"fault {number}")])
        said += map(str, tracker.pop_new(number / 20))
    assert said == [f"Service shop/web: fault {number}" for number in range(MOST_OF_ONE)]
    tracker.record(ObjectKey("shop", "other"), [Problem("", "Service shop/other", "", "x", Code.SERVICE_FIELD)])
    assert [str(each) for each in tracker.pop_new(WHILE - 1)] == ["Service shop/other: x"]
    assert tracker.pop_new(WHILE) == [
        Problem(
            "", "Service shop/web", "", "and 990 more problems, as it was written again and again", Code.MORE_PROBLEMS
        )
    ]
    tracker.record(WEB, [problem("later")])
    assert [str(each) for each in tracker.pop_new(2 * WHILE)] == ["Service shop/web: later"]


def test_suppressed_faults_are_counted_for_any_number_of_objects() -> None:
    """Beyond a number of faulty objects in a minute, memory doesn't grow, and their faults are counted."""
    tracker = ProblemTracker()
    for number in range(MOST_WINDOWS + 100):
        tracker.record(ObjectKey("shop", f"s{number}"), [problem("x")])
        tracker.pop_new(0.0)
    assert len(tracker._windows) == MOST_WINDOWS
    (note,) = (each for each in tracker.pop_new(NOTE_EVERY) if each.code is Code.MORE_PROBLEMS)
    burst = LINES_OF_A_NAMESPACE[0]
    left_out = MOST_WINDOWS + 100 - burst - 1  # the first was said at once
    assert (
        note.message == f"and {left_out} more problems like these, {MOST_WINDOWS - burst - 1} of them in namespace shop"
    )


def test_a_tenant_with_many_faults_hides_no_other_tenants() -> None:
    """A namespace with few faults has each of them logged, beside thousands of another's in the same listing."""
    tracker, other = ProblemTracker(), Problem("", "Service quiet/web", "", "x", Code.SERVICE_FIELD)
    for number in range(1000):
        tracker.record(ObjectKey("evil", f"s{number}"), [problem("x")])
    tracker.record(ObjectKey("quiet", "web"), [other])
    said = tracker.pop_new(0.0)
    assert (len(said), other in said) == (MOST_AT_ONCE + 1, True)


def test_a_tenant_with_many_faulty_objects_takes_no_other_tenants_room() -> None:
    """A namespace with few faulty objects has their faults logged, beside any number of another's in a minute."""
    tracker, other = ProblemTracker(), Problem("", "Service quiet/web", "", "x", Code.SERVICE_FIELD)
    for number in range(MOST_WINDOWS + 100):
        tracker.record(ObjectKey("evil", f"s{number}"), [problem("x")])
        tracker.pop_new(0.0)
    tracker.record(ObjectKey("quiet", "web"), [other])
    assert tracker.pop_new(0.0) == [other]
    assert len(tracker._windows) == len(tracker._window_room) == MOST_WINDOWS


def test_new_names_do_not_fill_the_log() -> None:
    """A tenant whose Services come and go has its namespace's lines, another has its own, and the rest is counted."""
    tracker, said, seconds = ProblemTracker(), list[Problem](), 60
    for number in range(1000 * seconds):
        key = ObjectKey("evil", f"s{number}")
        tracker.record(key, [Problem("", f"Service {key}", "", "x", Code.SERVICE_FIELD)])
        said += tracker.pop_new(number / 1000)
        tracker.record(key, ())
    notes = [each for each in said if each.code is Code.MORE_PROBLEMS]
    assert len(notes) <= seconds / NOTE_EVERY + 1
    assert len(said) - len(notes) <= LINES_OF_A_NAMESPACE[0] + seconds / LINES_OF_A_NAMESPACE[1]
    tracker.record(WEB, [problem("mine")])
    assert "Service shop/web: mine" in map(str, tracker.pop_new(float(seconds)))


def test_all_namespaces_together_have_a_bound() -> None:
    """A thousand namespaces have no more lines than all may have together."""
    tracker = ProblemTracker()
    said = 0
    for number in range(4000):
        tracker.record(ObjectKey(f"ns-{number}", "web"), [problem("x")])
        said += len(tracker.pop_new(0.0))
    assert said == LINES_OF_ALL[0] + 1


def test_deletion_ends_complaints() -> None:
    """A fault lasts as long as its object, and an event's unknown type is said once."""
    reflector = watching()
    reflector.receive_data(line("ADDED", service(clusterIP=7, clusterIPs=None)), 0.0)
    assert reflector.problems.count > 0
    reflector.receive_data(line("DELETED", service(clusterIP=7, clusterIPs=None)), 0.0)
    assert reflector.problems.count == 0
    reflector.problems.pop_new(0.0)
    reflector.receive_data(line("SURPRISE", service()) * 3, 0.0)
    assert len(reflector.problems.pop_new(0.0)) == 1
