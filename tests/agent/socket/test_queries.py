"""The agent's answers from memory."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from nftproxy.agent.reporting.freshness import GRACE
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.sync_reporter import Clocks, SyncReporter
from nftproxy.agent.socket import queries, shared_reading
from nftproxy.agent.socket.answers import AgentState, ConflictRow, End, EndpointRow, Line, ServiceRow
from nftproxy.agent.socket.query_context import QueryContext
from nftproxy.agent.socket.readiness import ClusterUnknown
from nftproxy.build import this_build
from nftproxy.commands.list import LISTINGS
from nftproxy.explanation.answer import Explanation
from nftproxy.extensions.external_addresses.fields import ExternalAddresses, Ping
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.model.addresses import Address, Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import ClusterObject, ObjectKey, Place, Service
from nftproxy.pipeline import Pipeline
from nftproxy.sources.api_client import ResourceActivity
from tests.agent.reporting.test_metrics import reporter
from tests.agent.socket.together import ask_together
from tests.support.factories import networks, pipeline, service, slice_of

MANY = 300


def knowing(made: Pipeline) -> QueryContext:
    """A query context about this pipeline."""
    reports = reporter(made)
    reports.ingested()
    return QueryContext(made, reports, 0.0, "1.0.6", this_build(), lambda: "here", dict)


def crowd() -> Pipeline:
    """Many Services."""
    made = pipeline()
    made.ingest(
        [
            Put(service(f"shop/s{number:04}", cluster_ips=(f"10.96.{number >> 8}.{number & 255}",)))
            for number in range(MANY)
        ]
    )
    return made


async def lines(answer: AsyncIterator[bytes]) -> list[Line]:
    """An answer as values."""
    text = b"".join([piece async for piece in answer])
    return msgspec.json.Decoder(Line).decode_lines(text)


def test_a_listing_yields_between_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing may stop after each Service, and Services that come and go meanwhile do it no harm."""
    monkeypatch.setattr(queries, "WORK_SECONDS", 0.0)
    made = crowd()

    async def scenario() -> tuple[int, list[Line]]:
        pieces = 0
        found = b""
        async for piece in queries.query_handlers(knowing(made))["/v1/services"]({}):
            if not pieces:
                made.ingest([Removed(Service, ObjectKey("shop", "s0299")), Put(service("shop/zz"))])
            pieces += 1
            found += piece
        return pieces, msgspec.json.Decoder(Line).decode_lines(found)

    pieces, rows = asyncio.run(scenario())
    assert pieces > MANY
    assert len(rows) in (MANY, MANY + 1)
    assert rows[-1] == End()


def test_a_listing_is_of_a_namespace_and_of_labels() -> None:
    """The namespace and the selector filter the listing, and an invalid selector is bad input."""
    made = pipeline()
    made.ingest([Put(service("shop/a", labels=(("app", "x"),))), Put(service("shop/b"))])
    answer = queries.query_handlers(knowing(made))["/v1/services"]
    chosen = [
        [row.service for row in asyncio.run(lines(answer(query))) if isinstance(row, ServiceRow)]
        for query in ({}, {"namespace": "shop"}, {"namespace": "other"}, {"selector": "app=x"}, {"selector": "!app"})
    ]
    assert chosen == [["a", "b"], ["a", "b"], [], ["a"], ["b"]]
    with pytest.raises(BadInput):
        asyncio.run(lines(answer({"selector": "a b"})))


@pytest.mark.parametrize("limit", ["0", "-1", "x", "10001", "99999999999", "٣", "000001000000"])
def test_limits_are_bounded(limit: str) -> None:
    """An invalid limit, or a limit that is too high, is bad input."""
    with pytest.raises(BadInput, match="limit"):
        asyncio.run(lines(queries.query_handlers(knowing(pipeline()))["/v1/affinity"]({"limit": limit})))


@pytest.mark.parametrize(
    "path", ["services", "endpoints", "conflicts", "quarantined", "affinity", "explain", "node", "connections"]
)
def test_nothing_is_answered_before_the_first_listing(path: str) -> None:
    """Without the whole cluster there is no listing, not even an empty listing, and no explanation."""
    made = crowd()
    activity = ResourceActivity("services", problem="403 Forbidden")
    reports = reporter(made)
    reports.activities = lambda: (activity,)
    reports.waits_for(["services", "endpointslices"])
    known = QueryContext(made, reports, 0.0, "1.0.6", this_build(), lambda: "here", dict)
    why = r"waits for the first listing of services \(403 Forbidden\), and for the first listing of endpointslices; "
    with pytest.raises(ClusterUnknown, match=why):
        asyncio.run(lines(queries.query_handlers(known)[f"/v1/{path}"]({"to": "10.96.0.1:80"})))


def test_a_refusal_waits_for_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose first request isn't answered yet waits for the answer, and refuses with its reason."""
    made, activity = crowd(), ResourceActivity("services")
    reports = reporter(made)
    reports.activities = lambda: (activity,)
    reports.waits_for(["services"])
    known = QueryContext(made, reports, 0.0, "1.0.6", this_build(), lambda: "here", dict)

    async def pause(_seconds: float) -> None:
        activity.problem = "403 Forbidden"

    monkeypatch.setattr("nftproxy.agent.socket.readiness.asyncio.sleep", pause)
    with pytest.raises(ClusterUnknown, match=r"the first listing of services \(403 Forbidden\); "):
        asyncio.run(lines(queries.query_handlers(known)["/v1/services"]({})))


def test_the_agents_own_port_is_a_conflict_of_the_node() -> None:
    """A port of the agent that another program has is a row of `conflicts`, unless only some Services are asked for."""
    made = crowd()
    known = knowing(made)
    known.reporter.health.set_warnings(Code.OWN_PORT_TAKEN, ["can't listen on 0.0.0.0:10256"])
    ask = queries.query_handlers(known)["/v1/conflicts"]
    why = "NFT009: can't listen on 0.0.0.0:10256"
    row = ConflictRow("", "", "", "the agent's own port", why, "")
    assert asyncio.run(lines(ask({}))) == [row, End()]
    assert asyncio.run(lines(ask({"namespace": "shop"}))) == [End()]
    assert asyncio.run(lines(ask({"selector": "a=b"}))) == [End()]
    assert row.key == "node"


def test_a_health_check_port_of_another_program_is_a_conflict() -> None:
    """A health-check node port that another program has is a row of `conflicts`, and a note of `services`."""
    checked = service(type="LoadBalancer", external_policy="Local", health_check_node_port=32000)
    made = pipeline(checked)
    made.health_checks.note_taken(frozenset({32000}))
    rows = asyncio.run(lines(queries.query_handlers(knowing(made))["/v1/conflicts"]({"namespace": "shop"})))
    why = "NFT010: the agent can't open health-check node port 32000"
    assert rows == [ConflictRow("shop", "web", "", "health-check node port 32000", why, ""), End()]


HERE, AWAY = "10.1.0.4@node-a", "10.1.1.4@node-b"
LOCAL: dict[str, Any] = {"internal_policy": "Local"}
NODE_PORT: dict[str, Any] = {"type": "NodePort", "ports": ["http:80:30080"]}


def service_row(*objects: ClusterObject, **tweaks: Any) -> ServiceRow:
    """The row of a single Service."""
    (row, _) = asyncio.run(lines(queries.query_handlers(knowing(pipeline(*objects, **tweaks)))["/v1/services"]({})))
    assert isinstance(row, ServiceRow)
    return row


def used(*objects: ClusterObject) -> dict[str, str]:
    """The endpoints of a single Service, with `USED` as the command shows it."""
    rows = asyncio.run(lines(queries.query_handlers(knowing(pipeline(*objects)))["/v1/endpoints"]({})))
    column = LISTINGS["endpoints"].columns["USED"]
    return {row.address: column(row) for row in rows if isinstance(row, EndpointRow)}


@pytest.mark.parametrize(
    ("objects", "state", "counts", "notes"),
    [
        ((service(), slice_of(endpoints=[HERE, AWAY])), "Served", "2/2", ()),
        (
            (service(),),
            "NoEndpoints",
            "0/0",
            ("port http (IPv4): no usable endpoint: the Service has no EndpointSlice of IPv4",),
        ),
        (
            (service(), slice_of(endpoints=[])),
            "NoEndpoints",
            "0/0",
            (
                "port http (IPv4): no usable endpoint: its EndpointSlices have no endpoints, as when its selector "
                "matches no pod",
            ),
        ),
        (
            (service(), slice_of(endpoints=[HERE, AWAY], ports=["web:8080"])),
            "NoEndpoints",
            "0/0",
            (
                "port http (IPv4): no usable endpoint: its EndpointSlices have 2 endpoints, none with the port `http`, "
                "as when targetPort names no container port of the pods",
            ),
        ),
        (
            (service(), slice_of(endpoints=[HERE]), slice_of(endpoints=[HERE, AWAY], ports=["web:8080"], suffix="2")),
            "Served",
            "1/1",
            ("port http (IPv4): endpoints without the port `http` in their EndpointSlice: 1 of 2",),
        ),
        (
            (service(), slice_of(endpoints=[HERE]), slice_of(endpoints=[HERE], ports=["web:8080"], suffix="2")),
            "Served",
            "1/1",
            (),
        ),
        (
            (service(type="LoadBalancer", proxied_ips=(Address("203.0.113.7"),)), slice_of(endpoints=[HERE])),
            "Served",
            "1/1",
            ("203.0.113.7 has ipMode Proxy: no rule serves it",),
        ),
        (
            (service(), slice_of(endpoints=[f"{HERE} unready"])),
            "NoEndpoints",
            "0/1",
            ("port http (IPv4): no usable endpoint: none of 1 is ready or serving",),
        ),
        (
            (service(**LOCAL), slice_of(endpoints=[AWAY])),
            "NoneLocal",
            "0/1",
            ("port http (IPv4): policy Local, and no usable endpoint is on this node, though other nodes have some",),
        ),
        ((service(**LOCAL), slice_of(endpoints=[HERE, AWAY])), "Served", "1/2", ()),
        ((service(external_policy="Local"), slice_of(endpoints=[AWAY])), "Served", "1/1", ()),
        (
            (service(ports=["http:22"], external_ips=["192.168.0.2"]), slice_of(endpoints=[HERE])),
            "Conflict",
            "1/1",
            (
                "it does not get 192.168.0.2:22/TCP: the port is protected on the node's own addresses "
                "(nftproxy.protectedPorts)",
            ),
        ),
        (
            (service(external_policy="Local", **NODE_PORT), slice_of(endpoints=[AWAY])),
            "NoneLocal",
            "1/1",
            ("port http (IPv4): policy Local, and no usable endpoint is on this node, though other nodes have some",),
        ),
    ],
)
def test_a_service_row_has_its_state(
    objects: tuple[ClusterObject, ...], state: str, counts: str, notes: tuple[str, ...]
) -> None:
    """A Service without usable endpoints, anywhere or where policy Local needs them, is not just served."""
    row = service_row(*objects)
    assert (row.state, f"{row.used}/{row.known}", row.notes) == (state, counts, notes)


def test_a_service_row_has_closed_addresses_and_pings() -> None:
    """The notes name each address at which other ports are closed, and that answers pings, only if so configured."""
    objects = service(external_ips=["203.0.113.9"]), slice_of()
    closed: dict[str, Any] = {
        "external_addresses": ExternalAddresses.CLOSED,
        "external_ip_cidrs": networks(["203.0.113.0/24"]),
    }
    notes = ("203.0.113.9: ports without a Service are closed",)
    assert service_row(*objects, **closed).notes == notes
    pings = ("10.96.0.10: answers pings", "203.0.113.9: answers pings")
    assert service_row(*objects, **closed, ping=Ping.ANSWER).notes == notes + pings
    assert service_row(*objects).notes == ()


@pytest.mark.parametrize(("port", "is_fast"), [("dns:53/udp", True), ("http:80", True), ("ss7:80/sctp", False)])
def test_a_service_row_has_the_fast_path(port: str, is_fast: bool) -> None:
    """A note says that established connections take the fast path, which SCTP never does."""
    notes = ("established connections at eth0, veth* take the fast path",) if is_fast else ()
    row = service_row(service(ports=[port]), slice_of(ports=[port]), fast_path_interfaces=("eth0", "veth*"))
    assert (row.state, row.notes) == ("Served", notes)


def test_a_service_row_has_the_faults_of_its_objects() -> None:
    """The notes have the parts of a Service and its EndpointSlices that can't be used."""
    fault = "NFT211: metadata.annotations[nftproxy.dev/new]: is not known"
    row = service_row(service(faults=(fault,)), msgspec.structs.replace(slice_of(), faults=(fault,)))
    assert row.notes == (fault, f"{fault} (EndpointSlice web-1)")
    assert row.state == "Served"


@pytest.mark.parametrize(
    ("tweaks", "expected"),
    [
        ({}, {"10.1.0.4": "yes", "10.1.1.4": "yes"}),
        (LOCAL, {"10.1.0.4": "local", "10.1.1.4": "no"}),
        ({**LOCAL, **NODE_PORT}, {"10.1.0.4": "yes", "10.1.1.4": "yes"}),
        ({**LOCAL, **NODE_PORT, "external_policy": "Local"}, {"10.1.0.4": "yes", "10.1.1.4": "yes"}),
    ],
)
def test_an_endpoint_is_used_if_a_connection_can_reach_it(tweaks: dict[str, Any], expected: dict[str, str]) -> None:
    """With internalTrafficPolicy Local alone, endpoints of other nodes get no connection from this node."""
    assert used(service(**tweaks), slice_of(endpoints=[HERE, AWAY])) == expected


def test_an_endpoint_of_a_withheld_service_is_not_used() -> None:
    """A Service without rules has no connections."""
    made = pipeline(service(), slice_of(endpoints=[HERE]))
    made.withheld[Family.IPV4][ObjectKey("shop", "web")] = "refused"
    (row, _) = asyncio.run(lines(queries.query_handlers(knowing(made))["/v1/endpoints"]({})))
    assert isinstance(row, EndpointRow)
    assert (row.is_used, row.why) == (False, "the port has no address here")


def test_endpoints_have_the_names_of_their_pods() -> None:
    """An endpoint has the name of its pod from its EndpointSlice, and none if several pods have its address."""
    made = pipeline(
        service(),
        msgspec.structs.replace(slice_of(endpoints=[HERE, AWAY]), pods="web-1 web-2"),
        msgspec.structs.replace(slice_of(endpoints=[AWAY], suffix="2"), pods="web-3"),
    )
    rows = asyncio.run(lines(queries.query_handlers(knowing(made))["/v1/endpoints"]({})))
    assert [row.pod for row in rows if isinstance(row, EndpointRow)] == ["shop/web-1", ""]


def test_silent_endpoints_are_listed() -> None:
    """The endpoints that don't answer the node are listed, even if they stay in use, for Services that ask for it."""
    ends = [HERE, AWAY, "10.1.1.5@node-b"]
    made = pipeline(
        service("shop/web", annotations={"failover": "silent"}), slice_of(endpoints=ends),
        service("shop/api", cluster_ips=["10.96.0.11"]), slice_of("shop/api", endpoints=ends),
    )  # fmt: skip
    made.ingest([Put(SilentPlaces(tuple(Place(Address(f"10.1.1.{n}"), 8080) for n in (4, 5))))])
    rows = asyncio.run(lines(queries.query_handlers(knowing(made))["/v1/silent"]({})))
    found = [(row.service, row.endpoint, row.is_used) for row in rows if isinstance(row, EndpointRow)]
    assert found == [("web", "10.1.1.4:8080", False), ("web", "10.1.1.5:8080", True)]


def explained(made: Pipeline, to: str = "10.96.0.10:80") -> Explanation:
    """The agent's explanation of connections."""

    async def answer() -> bytes:
        return b"".join([piece async for piece in queries.query_handlers(knowing(made))["/v1/explain"]({"to": to})])

    return msgspec.json.decode(asyncio.run(answer()), type=Explanation)


@pytest.mark.parametrize(("damaged", "is_damaged"), [(0, False), (1, False), (99, True)])
def test_a_change_on_its_way_is_no_damage(monkeypatch: pytest.MonkeyPatch, damaged: int, is_damaged: bool) -> None:
    """An explanation that differs from the kernel is compared again, and only a lasting difference is damage."""
    compared = []

    def with_kernel(explanation: Explanation) -> Explanation:
        compared.append(explanation)
        (place,) = explanation.places
        is_held = len(compared) > damaged
        expected = tuple(msgspec.structs.replace(each, is_held=is_held) for each in place.expected)
        return msgspec.structs.replace(explanation, places=(msgspec.structs.replace(place, expected=expected),))

    monkeypatch.setattr(queries, "_with_kernel", with_kernel)
    monkeypatch.setattr(queries, "_hooked_chains", lambda _families: {})
    monkeypatch.setattr(queries, "AGAIN", 0.0)
    assert explained(pipeline(service(), slice_of())).is_damaged is is_damaged
    assert len(compared) == min(damaged + 1, queries.COMPARISONS)


def test_a_missing_chain_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explanation names the base chains that the kernel lacks, and is damaged by them."""
    monkeypatch.setattr(queries, "_with_kernel", lambda explanation: explanation)
    monkeypatch.setattr(queries, "_hooked_chains", lambda families: dict.fromkeys(families, frozenset()))
    monkeypatch.setattr(queries, "AGAIN", 0.0)
    explanation = explained(pipeline(service(), slice_of()))
    assert "ip nftproxy nat-prerouting" in explanation.missing_chains
    assert explanation.is_damaged


@pytest.mark.parametrize(
    ("to", "is_about"),
    [("10.96.0.10:80", True), ("svc/shop/web", True), ("svc/shop/web:https", True), ("svc/shop/api", False)],
)
def test_an_explanation_has_the_faults_of_its_service(monkeypatch: pytest.MonkeyPatch, to: str, is_about: bool) -> None:
    """Notes have the parts of a Service and its EndpointSlices that can't be used, also if no place is explained."""
    fault = "NFT211: metadata.annotations[nftproxy.dev/new]: is not known"
    made = pipeline(
        service("shop/web", faults=(fault,)), msgspec.structs.replace(slice_of("shop/web"), faults=(fault,)),
        service("shop/api", cluster_ips=["10.96.0.11"]), slice_of("shop/api"),
    )  # fmt: skip
    monkeypatch.setattr(queries, "_with_kernel", lambda explanation: explanation)
    monkeypatch.setattr(queries, "_hooked_chains", lambda _families: {})
    notes = [note for note in explained(made, to).notes if "NFT211" in note]
    assert notes == ([fault, f"{fault} (EndpointSlice web-1)"] if is_about else [])


def test_lines_of_features_are_read_once_for_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` gives signs of life while a feature reads the kernel, and a second query joins the reading."""
    ready, readings = threading.Event(), list[int]()

    def read() -> Mapping[str, Sequence[str]]:
        readings.append(1)
        assert ready.wait(60)
        return {"Fast path": ["7 connections"]}

    monkeypatch.setattr(shared_reading, "PROGRESS", 0.01)
    known = knowing(pipeline())._replace(statuses=(dict, read, lambda: {"Silent endpoints": []}))
    handler = queries.query_handlers(known)["/v1/status"]

    for pieces in ask_together(handler, ready):
        assert pieces[0] == b"\n"
        answer = msgspec.json.decode(b"".join(pieces), type=AgentState)
        assert answer.features == {"Fast path": ("7 connections",), "Silent endpoints": ()}
    assert readings == [1]


def test_a_status_is_of_one_moment() -> None:
    """A resource that gets out of touch while `status` is answered is so in its warnings and caveat, or in neither."""
    verdicts = [_in_touch(begin) for begin in range(20)]
    assert verdicts[0] == (True, True)
    assert verdicts[-1] == (False, False)
    assert set(verdicts) == {(True, True), (False, False)}


def _in_touch(ticks: int) -> tuple[bool, bool]:
    """Whether the warnings and the caveat of a status have nothing, a resource getting out of touch after some ticks.

    The clock ticks whenever it is read.
    """
    clock = itertools.count(1000.0)
    reports = SyncReporter(Health(30.0), Metrics(), clocks=Clocks(lambda: next(clock), lambda: 5000.0))
    activity = ResourceActivity("services", failing_since=1020.0 - ticks - GRACE, problem="403 Forbidden")
    reports.activities = lambda: (activity,)
    known = knowing(pipeline())._replace(reporter=reports)

    async def answer() -> AgentState:
        pieces = [piece async for piece in queries.query_handlers(known)["/v1/status"]({})]
        return msgspec.json.decode(b"".join(pieces), type=AgentState)

    state = asyncio.run(answer())
    return not any(each.startswith(Code.OUT_OF_TOUCH) for each in state.warnings), not state.caveat
