"""Annotations of nftproxy's own: what is read, what is reported, and what costs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from nftproxy.api import schema
from nftproxy.api.annotations import (
    ENDPOINT_SLICE,
    LADDER,
    LONGEST_VALUE,
    MAX_DENIED_RANGES,
    MOST_ZONES,
    SERVICE,
    BadValue,
    Known,
    parse_limit,
    parse_number,
    parse_rate,
    parse_weight,
    parse_weights,
    parse_word,
    service_options,
    slice_options,
)
from nftproxy.api.parse import parse_json
from nftproxy.model.addresses import parse_network
from nftproxy.model.annotations import (
    PLAIN,
    PLAIN_SLICE,
    Algorithm,
    GuardedFronts,
    Rate,
    ServiceOptions,
    SilentEndpoints,
    SliceOptions,
)
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.objects import EndpointSlice, Service
from tests.support import raw

KNOWN = {
    "algorithm": Known("algorithm", lambda text: parse_word(text, Algorithm)),
    "weights": Known("weights", parse_weights),
}


def options(given: Mapping[str, Any]) -> tuple[ServiceOptions, list[str]]:
    """What a Service with these annotations asks for, by a table of two, and what is reported."""
    problems: list[str] = []

    def report(field: str, message: str, code: Code | None = None, /) -> None:
        assert code is Code.ANNOTATION_UNUSED
        problems.append(f"{field}: {message}")

    metadata = schema.ObjectMeta(annotations=dict(given))
    return service_options(schema.Service(metadata=metadata), report, KNOWN), problems


def refuse(*problem: object) -> None:
    """Take no report."""
    raise AssertionError(problem)


def test_what_is_known_is_read() -> None:
    """Each annotation of the table sets its field, whatever blanks are around the value; the others keep theirs."""
    given = {"nftproxy.dev/algorithm": " round-robin\n", "nftproxy.dev/weights": "zone:b=1, zone:a=3", "x": "y"}
    assert options(given) == (ServiceOptions(algorithm=Algorithm.ROUND_ROBIN, weights=(("a", 3), ("b", 1))), [])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "algorithm",
            "rr",
            "[nftproxy.dev/algorithm]: is 'rr', not one of random, round-robin, source-hash, source-hash-with-port,"
            " consistent-hash, consistent-hash-with-port: the annotation has no effect",
        ),
        ("algorithm", 3, "[nftproxy.dev/algorithm]: is 3, not a string: the annotation has no effect"),
        ("algorithm", {}, "[nftproxy.dev/algorithm]: is an object, not a string: the annotation has no effect"),
        (
            "algorithm",
            "x" * (LONGEST_VALUE + 1),
            "[nftproxy.dev/algorithm]: has 65537 characters, and 65536 are read: the annotation has no effect",
        ),
        ("algoritm", "random", "[nftproxy.dev/algoritm]: is not known: it has no effect"),
        ("", "random", "[nftproxy.dev/]: is not known: it has no effect"),
        ("a\nb", "", "['nftproxy.dev/a\\nb']: is not known: it has no effect"),
        ("x" * 64, "", f"['nftproxy.dev/{'x' * 46}...]: is not known: it has no effect"),
    ],
)
def test_what_is_unknown_or_bad_costs_itself(name: str, value: object, problem: str) -> None:
    """An annotation that isn't known, or whose value is bad, is reported, and another one has its effect."""
    given = {f"nftproxy.dev/{name}": value, "nftproxy.dev/weights": "zone:a=1"}
    assert options(given) == (ServiceOptions(weights=(("a", 1),)), [f"metadata.annotations{problem}"])


@pytest.mark.parametrize("given", [{}, {"example.org/algorithm": "rr", "algorithm": "rr", "nftproxy.develop/x": ""}])
def test_annotations_of_others_are_passed_over(given: Mapping[str, str]) -> None:
    """An object without annotations of nftproxy's own has the one value for nothing asked, and nothing is reported."""
    asked, problems = options(given)
    assert asked is PLAIN
    assert problems == []


def test_unknown_annotations_are_counted_beyond_some() -> None:
    """Five unknown annotations are reported by name, in the order of these, and all others, 256 KiB, by number."""
    named = [f"metadata.annotations[nftproxy.dev/{name}]: is not known: it has no effect" for name in "abcde"]
    assert options({f"nftproxy.dev/{name}": "" for name in "decba"}) == (PLAIN, named)
    _, problems = options({f"nftproxy.dev/{name}": "" for name in (*range(16_000, 32_000), *"decba")})
    assert len(problems) == 6
    assert problems[-1] == "metadata.annotations: 16000 more of nftproxy.dev/ are not known"


def test_longest_value_is_read() -> None:
    """A value of as many characters as are read has its effect, blanks and all."""
    given = {"nftproxy.dev/algorithm": "round-robin".ljust(65_536)}
    assert options(given) == (ServiceOptions(algorithm=Algorithm.ROUND_ROBIN), [])


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("zone:a=0", [("a", 0)]),
        ("zone:eu-west-1b=100,zone:eu-west-1a=7", [("eu-west-1a", 7), ("eu-west-1b", 100)]),
        (",".join(f"zone:z{number:02}=1" for number in range(MOST_ZONES)), [(f"z{n:02}", 1) for n in range(64)]),
    ],
)
def test_weights_of_zones(text: str, weights: list[tuple[str, int]]) -> None:
    """Weights are by zone, and ordered by its name."""
    assert parse_weights(text) == tuple(weights)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has '', which is not written as zone:NAME=WEIGHT"),
        ("a=3", "has 'a=3', which is not written as zone:NAME=WEIGHT"),
        ("zone:=3", "has 'zone:=3', which is not written as zone:NAME=WEIGHT"),
        ("zone:a b=3", "has 'zone:a b=3', which is not written as zone:NAME=WEIGHT"),
        ("zone:a=3,", "has '', which is not written as zone:NAME=WEIGHT"),
        ("zone:a", "has 'zone:a', which is not written as zone:NAME=WEIGHT"),
        ("zone:a=", "is '', not a number from 0 to 100"),
        ("zone:a=101", "is '101', not a number from 0 to 100"),
        ("zone:a=1,zone:b=2,zone:a=1", "names a zone twice"),
        (",".join(f"zone:z{number}=1" for number in range(MOST_ZONES + 1)), "names more than 64 zones"),
    ],
)
def test_bad_weights_of_zones(text: str, reason: str) -> None:
    """Weights that can't be read to the last are none at all: half of them would be another distribution."""
    with pytest.raises(BadValue) as caught:
        parse_weights(text)
    assert str(caught.value) == reason


@pytest.mark.parametrize("text", ["-1", "+1", "01", "1.0", "1e1", "101", "", "\u0663", "9" * 5000, "1_0", " 1"])
def test_what_is_no_weight(text: str) -> None:
    """A weight is a whole number from 0 to 100 in plain digits."""
    with pytest.raises(BadValue, match=r"^is '.*(?:'|\.\.\.), not a number from 0 to 100$"):
        parse_weight(text)
    assert [parse_weight("0"), parse_weight("100"), parse_number("7", 7, 7)] == [0, 100, 7]


def test_words() -> None:
    """A word is one of its kind, to the letter."""
    assert parse_word("leave-out", SilentEndpoints) is SilentEndpoints.LEAVE_OUT
    assert [parse_word(each.value, Algorithm) for each in Algorithm] == list(Algorithm)
    with pytest.raises(BadValue, match=r"^is 'Leave-out', not one of keep, leave-out$"):
        parse_word("Leave-out", SilentEndpoints)


def test_options_of_slices() -> None:
    """An EndpointSlice has annotations of its own: those of Services are not known there."""
    known = {"weight": Known("weight", parse_weight)}
    metadata = schema.ObjectMeta(annotations={"nftproxy.dev/weight": "0"})
    given = schema.EndpointSlice(metadata=metadata)
    assert slice_options(given, refuse, known) == SliceOptions(weight=0)
    assert slice_options(schema.EndpointSlice(), refuse, known) is PLAIN_SLICE


def test_each_annotation_has_its_effect() -> None:
    """Every annotation that the documentation names sets what it is about on a Service, or on an EndpointSlice."""
    given = {
        "algorithm": "consistent-hash",
        "weights": "zone:a=3",
        "client-connection-rate": "20,burst=40",
        "client-connections": "50",
        "denied-source-ranges": "192.0.2.0/24",
        "source-ranges-for": "node-ports",
        "silent-endpoints": "leave-out",
    }
    metadata = schema.ObjectMeta(annotations={f"nftproxy.dev/{name}": value for name, value in given.items()})
    assert service_options(schema.Service(metadata=metadata), refuse) == ServiceOptions(
        algorithm=Algorithm.CONSISTENT_HASH,
        weights=(("a", 3),),
        client_rate=Rate(20, 40),
        client_connections=50,
        denied_ranges=(parse_network("192.0.2.0/24"),),
        source_ranges_for=frozenset({GuardedFronts.NODE_PORTS}),
        silent_endpoints=SilentEndpoints.LEAVE_OUT,
    )
    metadata = schema.ObjectMeta(annotations={"nftproxy.dev/weight": "7"})
    assert slice_options(schema.EndpointSlice(metadata=metadata), refuse) == SliceOptions(weight=7)


def test_problems_name_the_object_and_the_annotation() -> None:
    """Of a Service and of a slice alike an unknown annotation is a Problem of its own code, and the object is kept."""
    for given, kind, name in (
        (raw.SERVICE, Service, "Service shop/web"),
        (raw.SLICE, EndpointSlice, "EndpointSlice shop/web-abcde"),
    ):
        annotated = raw.changed(given, "metadata|annotations", {"nftproxy.dev/new": "1"})
        plain, _ = raw.read(raw.changed(given, "metadata|annotations", {}))
        problems: list[Problem] = []
        assert parse_json(json.dumps(annotated).encode(), "", problems) == plain
        assert isinstance(plain, kind)
        assert [(each.object, each.field, each.code) for each in problems] == [
            (name, "metadata.annotations[nftproxy.dev/new]", Code.ANNOTATION_UNUSED)
        ]
        assert raw.read(annotated)[0] == plain


def test_each_known_annotation_has_a_field() -> None:
    """What the tables know is a field of the options, one annotation for each."""
    for table, options_type in ((SERVICE, ServiceOptions), (ENDPOINT_SLICE, SliceOptions)):
        fields = [known.field for known in table.values()]
        assert len(set(fields)) == len(fields)
        assert set(fields) <= set(options_type.__struct_fields__)


# ---- what clients may not do ---------------------------------------------------------------------------------------


def test_limits_that_there_are() -> None:
    """Every limit is one of five numbers of each power of ten, up to ten thousand."""
    limits = "1 2 3 5 7 10 20 30 50 70 100 200 300 500 700 1000 2000 3000 5000 7000 10000"
    assert sorted({parse_limit(str(number)) for number in range(1, 10_001)}) == list(map(int, limits.split()))
    assert [str(limit) for limit in LADDER] == limits.split()


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1", (1, 1)),
        ("20", (20, 20)),
        ("21", (30, 30)),
        ("10000", (10_000, 10_000)),
        ("20,burst=40", (20, 40)),
        ("20, burst=41", (20, 100)),
        ("19,burst=1", (20, 20)),
        ("20,burst=200", (20, 200)),
    ],
)
def test_rates(text: str, rate: tuple[int, int]) -> None:
    """A rate and its burst are rounded up to those that there are; without a burst it is a second's worth."""
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is '', not a number from 1 to 10000"),
        ("0", "is '0', not a number from 1 to 10000"),
        ("10001", "is '10001', not a number from 1 to 10000"),
        ("20/second", "is '20/second', not a number from 1 to 10000"),
        ("20,40", "has '40', which is not written as burst=NUMBER"),
        ("20,burst=", "is '', not a number from 1 to 200"),
        ("20,burst=201", "is '201', not a number from 1 to 200"),
        ("20,burst=40,burst=40", "is '40,burst=40', not a number from 1 to 200"),
    ],
)
def test_bad_rates(text: str, reason: str) -> None:
    """A rate with anything in it that can't be read is none."""
    with pytest.raises(BadValue) as caught:
        parse_rate(text)
    assert str(caught.value) == reason
    assert caught.value.rest is None


@pytest.mark.parametrize(
    ("text", "ranges", "problem"),
    [
        ("192.0.2.0/24,2001:db8::/32, 192.0.2.0/24", ["192.0.2.0/24", "2001:db8::/32"], ""),
        ("192.0.2.9/24", ["192.0.2.0/24"], ""),
        ("192.0.2.0/24,x", ["192.0.2.0/24"], "has 'x', which is not a CIDR: the rest is in force"),
        ("x,,192.0.2.0/24", ["192.0.2.0/24"], "has 'x', which is not a CIDR (and 1 more faults): the rest is in force"),
        ("x", [], "has 'x', which is not a CIDR: the annotation has no effect"),
        ("", [], "has '', which is not a CIDR: the annotation has no effect"),
    ],
)
def test_denied_ranges(text: str, ranges: list[str], problem: str) -> None:
    """A range that can't be read is reported, and the others are denied none the less."""
    made, problems = service_with({"nftproxy.dev/denied-source-ranges": text})
    assert [str(each) for each in made.options.denied_ranges] == ranges
    field = "Service shop/web: metadata.annotations[nftproxy.dev/denied-source-ranges]"
    assert problems == ([f"{field}: {problem}"] if problem else [])


def test_denied_ranges_are_bounded() -> None:
    """The first thousand ranges are denied, the others are not, and that is one problem."""
    text = ",".join(f"10.{n // 250}.{n % 250}.0/24" for n in range(MAX_DENIED_RANGES + 5))
    made, problems = service_with({"nftproxy.dev/denied-source-ranges": text})
    assert len(made.options.denied_ranges) == MAX_DENIED_RANGES
    assert [problem.partition("]: ")[2] for problem in problems] == [
        "has more than 1000 elements: the rest is in force"
    ]


@pytest.mark.parametrize(
    ("text", "words", "count"),
    [
        ("node-ports", {"node-ports"}, 0),
        ("external-ips, node-ports", {"external-ips", "node-ports"}, 0),
        ("node-port", set(), 1),
        ("node-port,external-ips", {"external-ips"}, 1),
        ("cluster-ips", set(), 1),
    ],
)
def test_source_ranges_for(text: str, words: set[str], count: int) -> None:
    """Each word that is known has its effect, one that isn't is reported."""
    made, problems = service_with({"nftproxy.dev/source-ranges-for": text})
    assert {each.value for each in made.options.source_ranges_for} == words
    assert len(problems) == count


def service_with(given: Mapping[str, str]) -> tuple[Service, list[str]]:
    """The Service with these annotations, and the problems."""
    outcome, problems = raw.read(raw.changed(raw.SERVICE, "metadata|annotations", dict(given)))
    assert isinstance(outcome, Service)
    return outcome, problems
