"""Any input, by any way in, becomes values or a report, never an exception, and no word of it gets into the rules.

Objects are whole and good, or have anything at all in some places: nft syntax, quotes, newlines, NULs, half surrogate
pairs, 10 kB of text, huge numbers, other types.  They come as manifests (YAML, JSON) and as the API sends them (lists,
watches).  Every name in them, good or bad, has a mark, which must not be found in any transaction.  Transactions
are read strictly (grammar.py), and the kernel must take them.
"""

from __future__ import annotations

import copy
import functools
import ipaddress
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from nftproxy_conformance.lab import obstacle

from nftproxy.api.parse import LONGEST_FAULT, MOST_FAULTS, parse_json, parse_manifest, parse_object
from nftproxy.api.reflector import Reflector
from nftproxy.api.resources import resources
from nftproxy.explanation.listing import review
from nftproxy.installed import OPTIONS
from nftproxy.model.addresses import Family, parse_address, parse_virtual_address
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event, Listed, Put
from nftproxy.model.objects import ClusterObject, EndpointSlice, Ignored, Node, Service, ServiceCIDR
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Transaction
from nftproxy.sources.files import read_file
from tests.support.factories import INSTALLED_KINDS, pipeline, renderer, service, settings, slice_of
from tests.support.lists import receive_list
from tests.support.raw import CIDR, NODE, SERVICE, SLICE
from tests.system.fuzz.effort import Tally, effort
from tests.system.fuzz.grammar import assert_typed, line_forms
from tests.system.fuzz.host import Host

MARK = "zqx"
"""In every name that comes in, and in nothing that a template writes."""

NODE_NAME = f"{MARK}-node"


# ---- objects -------------------------------------------------------------------------------------------------------

Raw = dict[str, Any]


def _with(raw: Raw, *changes: tuple[str, object]) -> Raw:
    made = copy.deepcopy(raw)
    for path, value in changes:
        inner: Any = made
        *way, last = path.split(".")
        for step in way:
            inner = inner[int(step)] if isinstance(inner, list) else inner.setdefault(step, {})
        inner[int(last) if isinstance(inner, list) else last] = value
    return made


_SERVICE = _with(
    SERVICE,
    ("metadata.name", f"{MARK}-web"),
    ("metadata.namespace", f"{MARK}-shop"),
    ("metadata.annotations", {f"{MARK}.example/note": MARK}),
    ("spec.ports.0.name", f"{MARK}-http"),
    ("spec.ports.1.name", f"{MARK}-dns"),
    ("spec.ports.0.appProtocol", f"{MARK}.example/http"),
    ("spec.selector", {"app": MARK}),
    ("spec.externalName", f"{MARK}.example"),
    ("status.loadBalancer.ingress.0.hostname", f"{MARK}.example"),
)
_SLICE = _with(
    SLICE,
    ("metadata.name", f"{MARK}-web-1"),
    ("metadata.namespace", f"{MARK}-shop"),
    ("metadata.labels", {"kubernetes.io/service-name": f"{MARK}-web"}),
    ("metadata.annotations", {"endpoints.kubernetes.io/last-change-trigger-time": "2024-05-01T10:20:30Z"}),
    ("ports", [{"name": f"{MARK}-http", "port": 8080}, {"name": f"{MARK}-dns", "protocol": "UDP", "port": 5353}]),
    ("endpoints.0.nodeName", NODE_NAME),
    ("endpoints.0.hostname", MARK),
    ("endpoints.0.zone", f"{MARK}-a"),
    ("endpoints.0.targetRef", {"kind": "Pod", "name": MARK}),
    ("endpoints.0.hints.forZones.0.name", f"{MARK}-a"),
    ("endpoints.0.hints.forNodes.0.name", NODE_NAME),
)
GOOD = (
    _SERVICE,
    _SLICE,
    _with(
        _SLICE,
        ("metadata.name", f"{MARK}-web-2"),
        ("addressType", "IPv6"),
        ("endpoints.0.addresses", ["fd00:1::4"]),
    ),
    _with(
        NODE,
        ("metadata.name", NODE_NAME),
        ("metadata.labels", {"topology.kubernetes.io/zone": f"{MARK}-a"}),
        ("spec.taints", [{"key": MARK, "effect": "NoSchedule"}]),
        ("status.addresses.0.address", NODE_NAME),
    ),
    _with(CIDR, ("metadata.name", f"{MARK}-cidr")),
)

_SYNTAX = r"""
    zqx;zqx-1;ZQX;@zqx;$zqx;*zqx;"zqx;'zqx;`zqx`;\zqx;zqx\;{{ zqx }};{% zqx %};{# zqx #};# zqx;zqx };zqx {;zqx,
    zqx : drop;goto zqx;zqx";flush ruleset;}; flush ruleset #zqx;include "/etc/zqx";$(zqx);%zqx;%n%n;tcp zqx;TCP } zqx
    zqx/tcp;10.0.0.1 zqx;10.0.0.1,zqx;10.0.0.1%zqx;fe80::1%zqx;::ffff:10.0.0.1%zqx;10.0.0.0/8 zqx;10.0.0.0/8,zqx;::/0
"""

hostile: st.SearchStrategy[str] = st.one_of(
    st.sampled_from([text for line in _SYNTAX.split("\n") for text in line.strip().split(";") if text]),
    st.sampled_from(
        [
            f"{MARK}\n}}\nflush ruleset\n",
            f"{MARK}\r}}\rflush ruleset\r",
            f"{MARK}\x00",
            f"{MARK}\x1b[31m",
            f"{MARK}\x85\u2028\u2029}}",
            f"{MARK}\ud800",
            f"{MARK}\u202e",
            MARK * 3500,
            f"{MARK}-" * 15 + MARK,
            f"{MARK}\n---\nkind: Service\n",
            f"&{MARK} *{MARK}",
            "\uff11\uff10.0.0.1",  # digits, but of another script
            "010.0.0.1",
            "10.0.0.1/032",
            "::ffff:10.96.0.1",
            "::10.96.0.1",
            "1e2",
        ]
    ),
    st.builds(lambda before, after: f"{before}{MARK}{after}", st.text(max_size=20), st.text(max_size=20)),
)
"""Text that is no valid name, address, network, word or time, though some of it is in another form."""

scalars = st.one_of(
    hostile,
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), -1, 0, 1, 80, 65535, 65536, 2**31, 2**63, 2**64]),
    st.floats(allow_nan=False),
    st.sampled_from(["", "None", "10.0.0.1", "::1", "0.0.0.0/0", "x" * 10_000]),
    st.text(max_size=20),
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3), max_leaves=8
)


def paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of a value and of everything in it."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield from paths(inner, (*path, step))


def at(value: Any, path: tuple[str | int, ...]) -> object:
    """The value at a path."""
    return functools.reduce(lambda inner, step: inner[step], path, value)


def replaced(value: Any, path: tuple[str | int, ...], by: object) -> object:
    """The value with the part at the path replaced."""
    if not path:
        return by
    made = copy.copy(value)
    made[path[0]] = replaced(value[path[0]], path[1:], by)
    return made


@st.composite
def corrupted(draw: st.DrawFn) -> object:
    """A good object, or a list of objects, in which a value or two, or the whole, are anything at all."""
    made: Any = draw(st.sampled_from([*GOOD, {"apiVersion": "v1", "kind": "List", "items": list(GOOD[:2])}]))
    for _ in range(draw(st.integers(1, 2))):
        made = replaced(made, draw(st.sampled_from(list(paths(made)))), draw(anything))
    return made


@st.composite
def hostile_objects(draw: st.DrawFn) -> Raw:
    """A good object with hostile text in some places, and with more labels, annotations, elements and fields."""
    made: Any = draw(st.sampled_from(GOOD))
    for _ in range(draw(st.integers(0, 4))):
        path = draw(st.sampled_from(list(paths(made))[1:]))
        inner = at(made, path)
        text = draw(hostile)
        match inner:
            case dict():
                made = replaced(made, path, {**inner, text: draw(anything)})
            case list():
                made = replaced(made, path, [*inner, text, *copy.deepcopy(inner)])
            case _ if path not in (("kind",), ("apiVersion",)):
                made = replaced(made, path, text)
    assert isinstance(made, dict)
    return made


# ---- parsing -------------------------------------------------------------------------------------------------------


def leaves(value: object) -> Iterator[object]:
    """Everything that a model value is made of."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            if field not in ("taints", "faults"):  # foreign words: compared, or shown as all reported faults are
                yield from leaves(getattr(value, field))
    elif isinstance(value, tuple | frozenset):
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
            case int() | float():
                assert 0 <= leaf < 2**40
            case None | Enum() | ipaddress.IPv4Network() | ipaddress.IPv6Network():
                pass
            case _:
                pytest.fail(f"{leaf!r} in {value}")
    if isinstance(value, Service | EndpointSlice):
        assert len(value.faults) <= MOST_FAULTS
        assert all(len(fault) <= LONGEST_FAULT and fault.isprintable() for fault in value.faults)
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


def assert_sound_event(event: Event) -> None:
    """Assert the same of every part of an event."""
    match event:
        case Put(object=Service() | EndpointSlice() | Node() | ServiceCIDR() as value):
            assert_sound(value)
        case Listed(objects=values):
            for each in values:
                assert_sound(each)


def assert_readable(problem: Problem) -> None:
    """A report is a line of bounded length."""
    assert len(str(problem)) <= 500
    assert str(problem).isprintable()


@effort(50, 50_000)
@given(corrupted())
@example(_with(SERVICE, ("metadata.labels", {"\ud800": ""})))
@example(_with(SERVICE, ("metadata.annotations", {"": "\ud800"})))
@example(_with(SERVICE, ("spec.ports.0.port", 10**400)))
def test_anything_at_all(tally: Tally, raw: object) -> None:
    """With any JSON anywhere in an object, parsing never raises, and its values are sound."""
    problems: list[Problem] = []
    for value in parse_manifest(raw, "file", problems, kinds=INSTALLED_KINDS):
        assert_sound(value)
    for problem in problems:
        assert_readable(problem)
    tally.count("objects with anything in them")


@effort(25, 30_000)
@given(corrupted())
def test_anything_at_all_as_bytes(tally: Tally, raw: object) -> None:
    """The same from bytes, which says the same unless it refuses the text."""
    text = json.dumps(raw).encode()
    problems: list[Problem] = []
    outcome = parse_json(text, "", problems, kinds=INSTALLED_KINDS)
    tally.count("objects as bytes")
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        assert outcome is None
        return
    expected: list[Problem] = []
    assert parse_object(json.loads(text), "", expected) == outcome
    assert expected == problems


# ---- all ways in, down to the rules --------------------------------------------------------------------------------


class Ways:
    """The ways by which objects come in.  Each returns the events of the objects."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / f"{MARK}.yaml"
        self._json_file = directory / f"{MARK}.json"
        self.problems: list[Problem] = []
        self.ignored: list[Ignored] = []

    def documents(self, raws: list[Raw]) -> list[Event]:
        """Values that have been decoded."""
        return self._events(
            [each for raw in raws for each in parse_manifest(raw, MARK, self.problems, kinds=INSTALLED_KINDS)]
        )

    def json(self, raws: list[Raw]) -> list[Event]:
        """JSON texts, in UTF-8 as far as they can be."""
        texts = [json.dumps(raw, ensure_ascii=False).encode(errors="surrogatepass") for raw in raws]
        found = [parse_json(text, MARK, self.problems, kinds=INSTALLED_KINDS) for text in texts]
        return self._events([value for value in found if value is not None])

    def yaml_file(self, raws: list[Raw]) -> list[Event]:
        """A YAML file of several documents."""
        return self._read(self._file, yaml.safe_dump_all(raws, allow_unicode=False))

    def json_file(self, raws: list[Raw]) -> list[Event]:
        """A JSON file with a List."""
        return self._read(self._json_file, json.dumps({"apiVersion": "v1", "kind": "List", "items": raws}))

    def listings(self, raws: list[Raw]) -> list[Event]:
        """The API server's answers to lists."""
        events: list[Event] = []
        for resource in resources(NODE_NAME, options=OPTIONS):
            reflector = Reflector(resource)
            reflector.request(0.0, 0.0)
            items = [raw for raw in raws if raw.get("kind") == resource.kind.name]
            with mock.patch("nftproxy.api.responses.ENOUGH", 1):
                events += receive_list(reflector, _page(resource.kind.name, items), piece=1000)
            assert_complaints_readable(reflector)
        return events

    def watches(self, raws: list[Raw]) -> list[Event]:
        """The lines of the API server's watches, cut anywhere."""
        events: list[Event] = []
        for resource in resources(NODE_NAME, options=OPTIONS):
            reflector = Reflector(resource)
            reflector.request(0.0, 0.0)
            assert receive_list(reflector, _page(resource.kind.name, [])) == [Listed(resource.model, ())]
            reflector.request(0.0, 0.0)
            lines = [{"type": "ADDED", "object": raw} for raw in raws if raw.get("kind") == resource.kind.name]
            stream = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
            for start in range(0, len(stream), 1000):
                events += reflector.receive_data(stream[start : start + 1000], 0.0)
            assert_complaints_readable(reflector)
        return events

    def _read(self, file: Path, text: str) -> list[Event]:
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        contents = read_file(file, INSTALLED_KINDS)
        self.problems += contents.problems
        return self._events(contents.values)

    def _events(self, values: list[ClusterObject | Ignored]) -> list[Event]:
        self.ignored += [value for value in values if isinstance(value, Ignored)]
        return [Put(value) for value in values if not isinstance(value, Ignored)]


def assert_complaints_readable(reflector: Reflector) -> None:
    """Each complaint about an input is a line of bounded length."""
    for complaint in reflector.problems.pop_new(0.0):
        assert len(str(complaint)) <= 600
        assert str(complaint).isprintable()


def _page(kind: str, items: list[Raw]) -> bytes:
    given = {"kind": f"{kind}List", "metadata": {"resourceVersion": "5"}, "items": items}
    return json.dumps(given, separators=(",", ":")).encode()


Way = Callable[[Ways, list[Raw]], list[Event]]
WAYS: list[Way] = [Ways.documents, Ways.json, Ways.yaml_file, Ways.json_file, Ways.listings, Ways.watches]
CLOSED = settings(wide_maps=False, detect_local_mode="NodeCIDR")


def taking(events: list[Event]) -> Pipeline:
    """A pipeline that has seen these events."""
    made = Pipeline(NODE_NAME, CLOSED, renderer())
    made.ingest(events)
    return made


@functools.cache
def tame_forms() -> frozenset[str]:
    """The forms of all lines that declarations have, from a cluster with all that there is."""
    ports = [f"{protocol}:80:{30080 + number}/{protocol}" for number, protocol in enumerate(("tcp", "udp", "sctp"))]
    made = [
        service(
            f"shop/{policy.lower()}-{timeout}",
            type="LoadBalancer",
            cluster_ips=[f"10.96.0.{number}", f"fd00:96::{number}"],
            load_balancer_ips=[f"203.0.113.{number}", f"2001:db8::{number}"],
            ports=[port.replace(":30", f":3{number}") for port in ports],
            internal_policy=policy,
            external_policy=policy,
            affinity_timeout=timeout,
        )
        for number, (policy, timeout) in enumerate(
            [("Cluster", None), ("Local", None), ("Cluster", 60), ("Local", 60)], 1
        )
    ]
    slices = [
        slice_of(str(each.key), [f"{address}@node-a"], ports=["tcp:80", "udp:80/udp", "sctp:80/sctp"], suffix=suffix)
        for each in made
        for suffix, address in (("4", "10.1.0.4"), ("6", "fd00:1::4"))
    ]
    whole = pipeline(*made, *slices, settings=CLOSED)
    bare = pipeline(settings=CLOSED, node=None)
    return frozenset(line_forms(whole.full_transaction({}).text) | line_forms(bare.full_transaction({}).text))


def assert_reviewable(text: str) -> None:
    """The listing for people has hostile names in comments only, which are bounded and on a single line."""
    for line in text.split("\n"):
        statement, _, comment = line.partition("#")
        assert MARK not in statement.lower(), line
        assert line.isprintable()
        assert len(comment) <= 700


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A node to try rules on."""
    if why := obstacle():
        pytest.skip(why)
    with closing(Host()) as made:
        yield made


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somewhere to put manifests."""
    return tmp_path_factory.mktemp("manifests")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@effort(3, 2_000)
@given(raws=st.lists(hostile_objects(), min_size=1, max_size=6))
@example(raws=list(GOOD))
def test_no_word_of_it_gets_into_the_rules(
    tally: Tally, host: Host, directory: Path, way: Way, raws: list[Raw]
) -> None:
    """By each way in: no exception, rules of typed values only that the kernel takes, names in comments only."""
    ways = Ways(directory)
    events = way(ways, raws)
    for event in events:
        assert_sound_event(event)
    for problem in ways.problems:
        assert_readable(problem)
    made = taking(events)
    transaction = made.full_transaction({})
    assert MARK not in transaction.text.lower()
    tally.count("elements read", assert_typed(transaction.text, tame_forms()))
    reviewed = "".join(review(made, ways.problems, ways.ignored))
    assert_reviewable(reviewed)
    host.check(transaction)
    host.check(Transaction(reviewed))
    tally.count("hostile clusters")
    tally.count("transactions checked", 2)


# ---- values that are right, however odd ----------------------------------------------------------------------------


AnyAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_ODD_ADDRESSES = """
    0.0.0.1 1.0.0.0 255.255.255.254 127.0.0.1 :: ::1 ::102:304 64:ff9b::1.2.3.4 ::ffff:0:1.2.3.4 2001::
    2001:db8::1:0:0:1 1:0:0:2:: 0:0:1:: fe80::1 ff02::1 ffff::ffff
"""

any_addresses: st.SearchStrategy[AnyAddress] = st.one_of(
    st.ip_addresses(), st.sampled_from(_ODD_ADDRESSES.split()).map(ipaddress.ip_address)
)


def spellings(address: AnyAddress) -> st.SearchStrategy[str]:
    """The ways to write an address that are allowed."""
    return st.sampled_from([str(address), address.exploded, address.exploded.upper()])


addresses = any_addresses.flatmap(spellings)
networks = any_addresses.flatmap(
    lambda it: st.tuples(spellings(it), st.integers(0, it.max_prefixlen)).map(lambda drawn: f"{drawn[0]}/{drawn[1]}")
)
ports = st.integers(1, 65535)


@st.composite
def odd_clusters(draw: st.DrawFn) -> list[Raw]:
    """A Service with its slices, the Node and a ServiceCIDR that have any addresses, networks, ports and times."""
    some, ranges = st.lists(addresses, max_size=4), st.lists(networks, max_size=4)
    numbers = st.lists(ports, min_size=2, max_size=2, unique=True)
    front, back, node_port = draw(numbers), draw(numbers), draw(numbers)
    web = _with(
        GOOD[0],
        ("spec.clusterIPs", draw(st.lists(addresses, min_size=1, max_size=2))),
        ("spec.externalIPs", draw(some)),
        ("spec.loadBalancerSourceRanges", draw(ranges)),
        ("spec.internalTrafficPolicy", draw(st.sampled_from(["Cluster", "Local"]))),
        ("spec.externalTrafficPolicy", draw(st.sampled_from(["Cluster", "Local"]))),
        ("spec.sessionAffinity", draw(st.sampled_from(["None", "ClientIP"]))),
        ("spec.sessionAffinityConfig.clientIP.timeoutSeconds", draw(st.integers(1, 86400))),
        ("status.loadBalancer.ingress", [{"ip": each} for each in draw(some)]),
        *((f"spec.ports.{index}.port", front[index]) for index in range(2)),
        *((f"spec.ports.{index}.nodePort", node_port[index]) for index in range(2)),
    )
    slices = [
        _with(
            GOOD[which],
            *((f"ports.{index}.port", back[index]) for index in range(2)),
            ("endpoints", [{"addresses": [each], "nodeName": NODE_NAME} for each in draw(some)]),
        )
        for which in (1, 2)
    ]
    node = _with(
        GOOD[3],
        ("spec.podCIDRs", draw(ranges)),
        ("status.addresses", [{"type": "InternalIP", "address": each} for each in draw(some)]),
    )
    return [web, *slices, node, _with(GOOD[4], ("spec.cidrs", draw(ranges)))]


@effort(5, 10_000)
@given(raws=odd_clusters())
def test_the_kernel_takes_whatever_is_right(tally: Tally, host: Host, directory: Path, raws: list[Raw]) -> None:
    """Any address, network, port and time that may be is taken, and read back as it was written."""
    made = taking(Ways(directory).documents(raws))
    transaction = made.full_transaction(host.installed())
    assert_typed(transaction.text, tame_forms())
    host.apply(transaction)
    for family, generation in made.generations.items():
        elements = frozenset(generation.elements())
        assert host.elements(family) == elements
        tally.count("elements compared", len(elements))
    tally.count("odd clusters")


# ---- bytes that are no texts ---------------------------------------------------------------------------------------


GOOD_YAML = yaml.safe_dump_all(list(GOOD)).encode()
GOOD_JSON = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(GOOD)}).encode()
GOOD_PAGE = _page("Service", [GOOD[0], GOOD[0]])
GOOD_WATCH = b"".join(json.dumps({"type": what, "object": GOOD[0]}).encode() + b"\n" for what in ("ADDED", "DELETED"))

_SPLINTERS = (
    *(
        b"\n",
        b"\n---\n",
        b": ",
        b"- ",
        b"? ",
        b"|\n",
        b"&a ",
        b"*a ",
        b"<<: ",
        b"%YAML 9\n",
        b"!!python/object:os.system ",
    ),
    *(b"{", b"}", b"[", b'"', b"'", b"null", b"1e999", b"\\u0000", b"\\ud800", b"\xff", b"\x00", b"\xef\xbb\xbf"),
)

splinters = st.binary(max_size=8) | st.sampled_from(_SPLINTERS)


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes of which some are replaced, moved, or left out."""
    made = good
    for _ in range(draw(st.integers(1, 6))):
        begin = draw(st.integers(0, len(made)))
        end = begin + draw(st.sampled_from([0, 0, 1, 4, 100, len(made)]))
        made = made[:begin] + draw(splinters | st.just(made[begin : begin + 200])) + made[end:]
    return made


@effort(15, 20_000)
@given(data=damaged(GOOD_YAML) | damaged(GOOD_JSON))
@example(data=b"[" * 100_000)
@example(data=b"- " * 50_000)
@example(data=b'{"a":' * 100_000)
@example(data=b"a: &a [x]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (n, n) for n in range(3000)))
@example(data=b"a: " + b"9" * 100_000)
@example(data=b'{"kind": "Service", "apiVersion": "v1", "spec": ' + b"9" * 100_000 + b"}")
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_damaged_file(tally: Tally, directory: Path, suffix: str, data: bytes) -> None:
    """Reading a file of any bytes never raises, and its values are sound."""
    file = directory / f"damaged.{suffix}"
    file.write_bytes(data)
    contents = read_file(file)
    for value in contents.values:
        assert_sound(value)
    for problem in contents.problems:
        assert_readable(problem)
    tally.count("damaged files")


@effort(15, 20_000)
@given(page=damaged(GOOD_PAGE), stream=damaged(GOOD_WATCH), cut=st.integers(1, 500))
@example(page=b"[" * 100_000, stream=b"[" * 100_000 + b"\n", cut=500)
def test_damaged_answers(tally: Tally, page: bytes, stream: bytes, cut: int) -> None:
    """With any bytes from the API server, the events are sound, and the reflector has a next request."""
    reflector = Reflector(next(each for each in resources(NODE_NAME, options=OPTIONS) if each.kind.name == "Service"))
    reflector.request(0.0, 0.0)
    with mock.patch("nftproxy.api.responses.ENOUGH", 1):
        events = receive_list(reflector, page, piece=cut)
    reflector.request(0.0, 0.0)
    for start in range(0, len(stream), cut):
        if reflector.is_open:
            events += reflector.receive_data(stream[start : start + cut], 0.0)
    if reflector.is_open:
        reflector.receive_end(0.0)
    assert not reflector.is_open
    assert reflector.request(0.0, 0.0)
    for event in events:
        assert_sound_event(event)
    made = taking(events)
    assert MARK not in made.full_transaction({}).text
    assert_complaints_readable(reflector)
    tally.count("damaged answers")
