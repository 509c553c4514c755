"""The answers of a real API server (tests/support/recordings), read by the reflector and by the parser.

Each object that the server takes and the parser reports, or the other way round, has its reason here.
"""

from __future__ import annotations

import json
from unittest import mock

import pytest
from nftproxy_conformance.apiserver import services, slices

from nftproxy.api.parse import parse_json
from nftproxy.api.pauses import ReflectorTimes
from nftproxy.api.reflector import Reflector
from nftproxy.api.resources import Resource, resources
from nftproxy.api.responses import PageReader, read_error
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, Ignored, Node, Service, ServiceCIDR
from tests.support import objects
from tests.support.lists import receive_list
from tests.support.recordings import EXCHANGES, Exchange, Object

NODES, CIDRS, SERVICES, SLICES = resources("node-0")
KINDS = {"/services": SERVICES, "/nodes": NODES, "/servicecidrs": CIDRS, "/endpointslices": SLICES}
SHORT = ReflectorTimes(shortest_watch=3, longest_watch=3, healthy=2.0)
"""With these, a recorded watch, which lasted for some seconds, was healthy and came to its end."""


def followed(exchange: Exchange) -> Resource | None:
    """The resource that a list or a watch is about, None for all else."""
    if exchange.method != "GET":
        return None
    plural = exchange.path.partition("?")[0].rpartition("/")[2]
    return KINDS.get(f"/{plural}")


def name_of(event: Event) -> str:
    """The name of an event's object."""
    found = event.object if isinstance(event, Put) else event
    assert isinstance(found, Service | ServiceCIDR | Removed | EndpointSlice | Node)
    key = found.name if isinstance(found, ServiceCIDR | Node) else found.key
    return key if isinstance(key, str) else key.name


LISTS = [each for each in EXCHANGES if followed(each) and "watch=" not in each.path]
WATCHES = [each for each in EXCHANGES if followed(each) and "watch=" in each.path]


def body_of(exchange: Exchange) -> bytes:
    """The answer as bytes, or text if it was neither JSON nor YAML."""
    if exchange.answer is None:
        return b"404 page not found\n"
    if exchange.headers["content-type"] == "application/yaml":
        return b"kind: ServiceList\nmetadata: {resourceVersion: '1'}\nitems: []\n"
    return json.dumps(exchange.answer).encode()


def asked(reflector: Reflector, now: float = 100.0) -> str:
    """The next request, in short."""
    request = reflector.request(now, 0.0)
    version = request.params.get("resourceVersion", "newest")
    return f"{'watch' if request.is_watch else 'list'} {version}"


def events_of_list(reflector: Reflector, exchange: Exchange) -> list[Event]:
    """The events that a reflector makes of an answer to a list."""
    reflector.request(0.0, 0.0)
    reflector.receive_answer(0.0)
    body = body_of(exchange)
    if exchange.status == 200:
        return receive_list(reflector, body)
    return reflector.receive_error(read_error(body, exchange.status, exchange.headers.get("retry-after", "")), 0.0)


LISTED = {
    "list Services from the watch cache": "watch 8136",
    "list: second page": "watch 8144",
    "list ServiceCIDRs": "watch 8628",
    "list one Node by field selector": "watch 8626",
    "list EndpointSlices": "watch 8598",
}
"""Lists that are complete, and the next request after each."""

NOT_LISTED = {
    "list, newest, in pages: first": (0.0, "list newest"),
    "list: a continue token that is none": (0.5, "list 0"),
    "list at a version from the future": (1.5, "list newest"),
    "list at a version that is no number": (0.5, "list 0"),
    "401: a token that is none": (0.5, "list 0"),
    "403: anonymous": (0.5, "list 0"),
    "a kind that is not there": (0.0, "list 0"),
    "unknown label selector operator": (0.5, "list 0"),
    "406: unknown accept": (0.5, "list 0"),
    "table instead of objects": (0.5, "list 0"),
}
"""Answers that make no listing: the shortest pause in seconds, and the next request."""


def test_every_recorded_list_is_fed() -> None:
    """No list is left out of the tables above."""
    assert {exchange.name for exchange in LISTS} == LISTED.keys() | NOT_LISTED.keys()


@pytest.mark.parametrize("exchange", [each for each in LISTS if each.name in LISTED], ids=lambda each: each.name)
def test_a_recorded_list_is_read(exchange: Exchange) -> None:
    """A real list is a single event without problems, and the watch begins at its version."""
    resource = followed(exchange)
    assert resource is not None
    assert exchange.answer is not None
    reflector = Reflector(resource)
    (listing,) = events_of_list(reflector, exchange)
    assert isinstance(listing, Listed)
    ours = (
        [item for item in exchange.answer["items"] if item["spec"].get("clusterIP", "None") != "None"]
        if (resource is SERVICES)
        else exchange.answer["items"]
    )
    assert len(listing.objects) == len(ours) > 0
    assert (reflector.problems.count, reflector.problems.pop_new(0.0)) == (0, [])
    assert asked(reflector) == LISTED[exchange.name]


@pytest.mark.parametrize("exchange", [each for each in LISTS if each.name in NOT_LISTED], ids=lambda each: each.name)
def test_a_broken_recording_causes_no_event(exchange: Exchange) -> None:
    """An error, half a list, and a list in another form are no events, and lead to a sensible next request."""
    resource = followed(exchange)
    assert resource is not None
    reflector = Reflector(resource)
    assert events_of_list(reflector, exchange) == []
    at_least, then = NOT_LISTED[exchange.name]
    assert reflector.pause.shortest == at_least
    assert asked(reflector) == then


def test_recorded_pages_make_one_listing() -> None:
    """The two pages of a real server are a single listing, without Services that are headless or have no address."""
    first, second = (each for each in LISTS if "limit=2" in each.path and each.status == 200)
    reflector = Reflector(SERVICES)
    assert events_of_list(reflector, first) == []
    assert first.answer is not None
    assert reflector.request(0.0, 0.0).params["continue"] == first.answer["metadata"]["continue"]
    (listing,) = events_of_list(reflector, second)
    assert isinstance(listing, Listed)
    assert [value.key.name for value in listing.objects if isinstance(value, Service)] == ["gateway", "web"]
    assert asked(reflector) == "watch 8144"


WATCHED: dict[str, tuple[list[tuple[type, str]], str]] = {
    "watch at a version that is no number": ([], "watch 5"),
    "watch from the future": ([], "watch 5"),
    "watch from a compacted version": ([], "list 5"),
    "watch list (sendInitialEvents)": (
        [(Removed, "db"), (Put, "gateway"), (Removed, "out"), (Put, "web")],
        "watch 8154",
    ),
    "watch with a label selector: changed, leaves the selection, comes back, another deleted; "
    "then it ends by timeoutSeconds": (
        [(Put, "gateway"), (Put, "gateway"), (Put, "web"), (Removed, "web"), (Put, "web"), (Removed, "db")],
        "watch 8175",
    ),
    "watch for two minutes in which nothing happens: bookmarks": ([(Put, "kubernetes")], "watch 8600"),
}
"""The events of each recorded watch, in short, and the next request.  The version before was 5."""


@pytest.mark.parametrize("exchange", [each for each in LISTS if each.name in LISTED], ids=lambda each: each.name)
def test_a_recorded_list_is_cut_while_it_comes(exchange: Exchange) -> None:
    """All items but the last are taken out of a real list, in Go's form, before its end."""
    resource = followed(exchange)
    assert resource is not None
    assert isinstance(exchange.answer, dict)
    with mock.patch("nftproxy.api.responses.ENOUGH", 1):
        reader = PageReader(resource.kind)
        taken = reader.take(json.dumps(exchange.answer, separators=(",", ":")).encode())
    (last,) = reader.end().items
    assert [json.loads(bytes(raw)) for raw in (*taken, last)] == exchange.answer["items"]


@pytest.mark.parametrize("exchange", WATCHES, ids=lambda each: each.name)
def test_a_recorded_watch_is_followed(exchange: Exchange) -> None:
    """Each real line is an event, bookmarks advance the version, and errors lead to the right request."""
    resource = followed(exchange)
    assert resource is not None
    reflector = Reflector(resource, SHORT)
    page = {"kind": f"{resource.kind.name}List", "metadata": {"resourceVersion": "5"}, "items": []}
    reflector.request(0.0, 0.0)
    receive_list(reflector, json.dumps(page).encode())
    reflector.request(0.0, 0.0)
    reflector.receive_answer(0.0)
    found: list[Event] = []
    if exchange.status != 200:
        assert exchange.lines is not None
        found += reflector.receive_error(read_error(json.dumps(exchange.lines[0][1]).encode(), exchange.status), 0.0)
    else:
        for seconds, line in exchange.lines or ():
            found += reflector.receive_data(json.dumps(line).encode() + b"\n", seconds)
        if reflector.is_open:
            reflector.receive_end(exchange.lines[-1][0] if exchange.lines else 5.0)
    assert ([(type(event), name_of(event)) for event in found], asked(reflector)) == WATCHED[exchange.name]
    assert reflector.problems.count == 0


# Objects that the server takes and denies, and the parser's problems

DENIED_ALIKE = {
    "EndpointSlice refused: loopback address": "endpoints[0].addresses[0]",
    "EndpointSlice refused: link-local address": "endpoints[0].addresses[0]",
    "EndpointSlice refused: multicast address": "endpoints[0].addresses[0]",
    "EndpointSlice refused: leading zero address": "endpoints[0].addresses[0]",
    "EndpointSlice refused: IPv4-mapped address": "endpoints[0].addresses[0]",
    "Service: port 0": "spec.ports[0].port",
    "Service: unnamed and repeated port": "spec.ports[1]",
    "Service: external IP loopback": "spec.externalIPs[0]",
    "Service: bad source range": "spec.loadBalancerSourceRanges[0]",
    "Service: affinity timeout over a day": "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
}
"""Objects that a server denies and the parser reports, with the path of the problem."""

DENIED_BY_SERVER_ONLY = {
    "Service: node port out of range": "the range is a flag of the API server's; any port can be served",
    "Service: no ports": "such a Service rejects all connections to its ClusterIP (D15)",
    "Service: ClusterIP taken": "two Services that claim one address are a conflict, which the older one wins (D10)",
}
"""Objects that a server denies and the parser takes, with the reason."""


def objects_of(*, status: int) -> list[Exchange]:
    """Requests to create Services and EndpointSlices that were answered so."""
    return [
        each
        for each in EXCHANGES
        if each.method == "POST" and each.path.endswith(("/services", "/endpointslices")) and each.status == status
    ]


def problems_of(document: object) -> list[str]:
    """The paths of the problems of an object."""
    found: list[Problem] = []
    parse_json(json.dumps(document).encode(), "", found)
    return [problem.field for problem in found]


def sent(exchange: Exchange) -> dict[str, object]:
    """The object of a request, with the fields that the server would have added."""
    assert exchange.body is not None
    name = exchange.body["metadata"]["name"]
    if exchange.path.endswith("/services"):
        return objects.service(name, {"clusterIP": "10.96.0.9", **exchange.body["spec"]})
    rest = {field: value for field, value in exchange.body.items() if field != "metadata"}
    return objects.endpoint_slice(name, ports=()) | rest


@pytest.mark.parametrize("exchange", objects_of(status=201), ids=lambda each: each.name)
def test_objects_of_a_real_server_are_read_without_a_complaint(exchange: Exchange) -> None:
    """Every object that a real server created, as it stored it, is read without a complaint."""
    found: list[Problem] = []
    outcome = parse_json(json.dumps(exchange.answer).encode(), "", found)
    assert found == []
    assert isinstance(outcome, Service | EndpointSlice | Ignored)


@pytest.mark.parametrize("exchange", objects_of(status=422), ids=lambda each: each.name)
def test_objects_that_a_real_server_denies_are_reported(exchange: Exchange) -> None:
    """The parser reports every object that a real server denies, unless there is a reason to take it."""
    if exchange.name in DENIED_BY_SERVER_ONLY:
        assert problems_of(sent(exchange)) == []
    else:
        assert problems_of(sent(exchange))[0] == DENIED_ALIKE[exchange.name]


ADDRESSES = [
    *"10.1.0.4 0.0.0.0 127.0.0.1 127.9.9.9 169.254.1.1 224.0.0.1 224.0.0.255 010.1.1.1 10.1.1.01 256.1.1.1".split(),
    *"10.1.1 1.2.3.4.5 192.0.2.1/32 240.0.0.1 198.51.100.255 2001:db8::1 2001:DB8:0::1 :: ::1 fe80::1 ff02::1".split(),
    *"::ffff:1.2.3.4 fe80::1%eth0 ::1.2.3.4 g::1 224.0.1.1 239.1.1.1 255.255.255.255 ff05::1 ff01::1".split(),
    "",
    " 10.1.0.4",
]
RANGES = [
    *"198.51.100.0/24 0.0.0.0/0 ::/0 2001:db8::/32 198.51.100.7/32 10.0.0.0/33 10.0.0.0/-1 10.0.0.0".split(),
    *"10.0.0.0/8/8 010.0.0.0/8 2001:db8::/129 ::ffff:10.0.0.0/104 10.0.0.0/255.0.0.0 x/8 10.0.0.7/8".split(),
    *["2001:db8::7/32", "10.0.0.0/08", "", " 10.0.0.0/8 ", "10.0.0.0/8\n"],
]

TAKEN_BY_SERVER_ONLY = {
    "224.0.1.1": "multicast that isn't link-local",
    "239.1.1.1": "multicast that isn't link-local",
    "ff05::1": "multicast that isn't link-local",
    "ff01::1": "multicast that isn't link-local",
    "255.255.255.255": "the broadcast address",
}
"""Addresses that a server takes and the parser complains of (D1): no connection can be made to them."""

TAKEN_BY_PARSER_ONLY = {
    "10.0.0.7/8": "bits beyond the prefix",
    "2001:db8::7/32": "bits beyond the prefix",
}
"""Ranges that servers deny since 1.36.  Existing objects keep them, and kube-proxy too reads them as the range around
them."""


def taken_by_server(document: Object) -> bool:
    """Whether the test API server takes an object.  It answers the recorded requests as the real server did."""
    rules = {"Service": services, "EndpointSlice": slices}[document["kind"]]
    rules.complete(document)
    return not list(rules.causes(document, None))


@pytest.mark.parametrize("address", ADDRESSES)
def test_server_and_parser_agree_on_addresses(address: str) -> None:
    """Server and parser agree on an address of an endpoint or an external IP, except for the explained addresses."""
    kind = "IPv6" if ":" in address else "IPv4"
    for document in (
        objects.service(spec={"clusterIP": "10.96.0.9", "externalIPs": [address]}),
        objects.endpoint_slice("web-1", objects.endpoint(address), family=kind),
    ):
        is_good = problems_of(document) == []
        assert (taken_by_server(document), is_good) == (is_good or address in TAKEN_BY_SERVER_ONLY, is_good)
        assert not (is_good and address in TAKEN_BY_SERVER_ONLY)


@pytest.mark.parametrize("text", RANGES)
def test_server_and_parser_agree_on_source_ranges(text: str) -> None:
    """Server and parser agree on a source range, except for the explained ranges."""
    spec = {"type": "LoadBalancer", "clusterIP": "10.96.0.9", "loadBalancerSourceRanges": [text]}
    document = objects.service(spec=spec)
    assert (problems_of(document) == []) == (taken_by_server(document) or text in TAKEN_BY_PARSER_ONLY)
    assert not (taken_by_server(document) and text in TAKEN_BY_PARSER_ONLY)
