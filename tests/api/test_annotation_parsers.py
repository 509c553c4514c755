"""Annotations of nftproxy's own: parsing, reports of faults, and objects without annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from nftproxy.api import schema
from nftproxy.api.annotation_parsers import (
    LADDER,
    LONGEST_VALUE,
    MOST_ZONES,
    BadValue,
    options_of,
    parse,
)
from nftproxy.api.parse import parse_json
from nftproxy.installed import OPTIONS
from nftproxy.model.addresses import Family
from nftproxy.model.annotations import PLAIN, WEIGHT, WEIGHTS, Form, Option, Options, Rate, Word
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.objects import EndpointSlice, Service
from tests.support import raw
from tests.support.annotations import ROWS, Row, each_annotation
from tests.support.factories import INSTALLED_KINDS
from tests.support.words import member_of

OF_SERVICES, OF_SLICES = (
    {each.annotation: each for each in OPTIONS if each.is_of_slices is of_slices} for of_slices in (False, True)
)


def options(given: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """The options of a Service with these annotations, and the reports."""
    problems: list[str] = []

    def report(field: str, message: str, code: Code | None = None, /) -> None:
        assert code is Code.ANNOTATION_UNUSED
        problems.append(f"{field}: {message}")

    metadata = schema.ObjectMeta(annotations=dict(given))
    return options_of(schema.ApiObject(metadata=metadata), OF_SERVICES, report), problems


def in_turn(others: Mapping[Option[Any], object] = MappingProxyType({})) -> Options:
    """The options of a Service with the annotation `algorithm: round-robin`, and others."""
    algorithm = OF_SERVICES["nftproxy.dev/algorithm"]
    assert isinstance(algorithm.form, Word)
    return Options.of({algorithm: member_of(algorithm.form, "round-robin"), **others})


def refuse(*problem: object) -> None:
    """Take no report."""
    raise AssertionError(problem)


def test_each_annotation_sets_its_field_only() -> None:
    """Each annotation sets its field, with or without blanks around the value, and no other field."""
    given = {"nftproxy.dev/algorithm": " round-robin\n", "nftproxy.dev/weights": "zone:b=1, zone:a=3", "x": "y"}
    assert options(given) == (in_turn({WEIGHTS: (("a", 3), ("b", 1))}), [])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "algorithm",
            "rr",
            "[nftproxy.dev/algorithm]: is 'rr', not one of random, round-robin, source-hash, "
            "source-hash-with-port, consistent-hash, consistent-hash-with-port, least-connections: "
            "the annotation has no effect",
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
def test_a_bad_annotation_costs_only_itself(name: str, value: object, problem: str) -> None:
    """An unknown annotation or a bad value is reported, and the annotation beside it has its effect."""
    given = {f"nftproxy.dev/{name}": value, "nftproxy.dev/weights": "zone:a=1"}
    assert options(given) == (Options.of({WEIGHTS: (("a", 1),)}), [f"metadata.annotations{problem}"])


@pytest.mark.parametrize("given", [{}, {"example.org/algorithm": "rr", "algorithm": "rr", "nftproxy.develop/x": ""}])
def test_foreign_annotations_are_ignored(given: Mapping[str, str]) -> None:
    """An object without our annotations has `PLAIN`, and nothing is reported."""
    asked, problems = options(given)
    assert asked is PLAIN
    assert problems == []


def test_unknown_annotations_are_counted_beyond_some() -> None:
    """Five unknown annotations are reported by name, in order, and the rest (256 KiB) by number."""
    named = [f"metadata.annotations[nftproxy.dev/{name}]: is not known: it has no effect" for name in "abcde"]
    assert options({f"nftproxy.dev/{name}": "" for name in "decba"}) == (PLAIN, named)
    _, problems = options({f"nftproxy.dev/{name}": "" for name in (*range(16_000, 32_000), *"decba")})
    assert len(problems) == 6
    assert problems[-1] == "metadata.annotations: 16000 more annotations of nftproxy.dev/ are not known"


def test_longest_value_is_read() -> None:
    """A value of as many characters as are read has its effect, blanks and all."""
    given = {"nftproxy.dev/algorithm": "round-robin".ljust(65_536)}
    assert options(given) == (in_turn(), [])


MOST = ",".join(f"zone:z{number:02}=1" for number in range(MOST_ZONES))


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        (Form.WEIGHT, "0", 0),
        (Form.WEIGHT, "100", 100),
        (Form.ZONE_WEIGHTS, "zone:a=0", (("a", 0),)),
        (Form.ZONE_WEIGHTS, "zone:eu-west-1b=100,zone:eu-west-1a=7", (("eu-west-1a", 7), ("eu-west-1b", 100))),
        (Form.ZONE_WEIGHTS, MOST, tuple((f"z{number:02}", 1) for number in range(64))),
        (Form.RATE, "1", Rate(1, 1)),
        (Form.RATE, "20", Rate(20, 20)),
        (Form.RATE, "21", Rate(30, 30)),
        (Form.RATE, "10000", Rate(10_000, 10_000)),
        (Form.RATE, "20,burst=40", Rate(20, 40)),
        (Form.RATE, "20, burst=41", Rate(20, 100)),
        (Form.RATE, "19,burst=1", Rate(20, 20)),
        (Form.RATE, "20,burst=200", Rate(20, 200)),
        (Word(Family, is_list=True), "ip6", frozenset({Family.IPV6})),
        (Word(Family, is_list=True), "none", frozenset()),
        *((Word(Family), each.value, each) for each in Family),
        *((Word([Family.IPV6]).and_of(Word(Family)), each.value, each) for each in Family),
    ],
)
def test_good_values(form: Form | Word, text: str, value: object) -> None:
    """Weights are sorted by zone, rates and bursts are rounded up to existing limits, and words are exact."""
    assert parse(text, form) == value


@pytest.mark.parametrize(
    ("form", "text", "reason"),
    [
        (Form.ZONE_WEIGHTS, "", "has '', which is not written as zone:NAME=WEIGHT"),
        (Form.ZONE_WEIGHTS, "a=3", "has 'a=3', which is not written as zone:NAME=WEIGHT"),
        (Form.ZONE_WEIGHTS, "zone:=3", "has 'zone:=3', which is not written as zone:NAME=WEIGHT"),
        (Form.ZONE_WEIGHTS, "zone:a b=3", "has 'zone:a b=3', which is not written as zone:NAME=WEIGHT"),
        (Form.ZONE_WEIGHTS, "zone:a=3,", "has '', which is not written as zone:NAME=WEIGHT"),
        (Form.ZONE_WEIGHTS, "zone:a", "has 'zone:a', which is not written as zone:NAME=WEIGHT"),
        (Form.ZONE_WEIGHTS, "zone:a=", "is '', not a number from 0 to 100"),
        (Form.ZONE_WEIGHTS, "zone:a=101", "is '101', not a number from 0 to 100"),
        (Form.ZONE_WEIGHTS, "zone:a=1,zone:b=2,zone:a=1", "names a zone twice"),
        (Form.ZONE_WEIGHTS, f"{MOST},zone:z=1", "names more than 64 zones"),
        (Form.RATE, "", "is '', not a number from 1 to 10000"),
        (Form.RATE, "0", "is '0', not a number from 1 to 10000"),
        (Form.RATE, "10001", "is '10001', not a number from 1 to 10000"),
        (Form.RATE, "20/second", "is '20/second', not a number from 1 to 10000"),
        (Form.RATE, "20,40", "has '40', which is not written as burst=NUMBER"),
        (Form.RATE, "20,burst=", "is '', not a number from 1 to 200"),
        (Form.RATE, "20,burst=201", "is '201', not a number from 1 to 200"),
        (Form.RATE, "20,burst=40,burst=40", "is '40,burst=40', not a number from 1 to 200"),
        (Word(Family, is_list=True), "IP", "is 'IP', not one of ip, ip6"),
    ],
)
def test_bad_values(form: Form | Word, text: str, reason: str) -> None:
    """A value of which a part can't be parsed is refused as a whole."""
    with pytest.raises(BadValue) as caught:
        parse(text, form)
    assert (str(caught.value), caught.value.rest) == (reason, None)


@pytest.mark.parametrize("text", ["-1", "+1", "01", "1.0", "1e1", "101", "", "\u0663", "9" * 5000, "1_0", " 1"])
def test_bad_weights_are_reported(text: str) -> None:
    """A weight is a whole number from 0 to 100 in plain digits."""
    with pytest.raises(BadValue, match=r"^is '.*(?:'|\.\.\.), not a number from 0 to 100$"):
        parse(text, Form.WEIGHT)


def test_options_of_slices() -> None:
    """An EndpointSlice has annotations of its own: a Service's annotations are unknown there."""
    metadata = schema.ObjectMeta(annotations={"nftproxy.dev/weight": "0"})
    given = schema.RawEndpointSlice(metadata=metadata)
    assert options_of(given, OF_SLICES, refuse) == Options.of({WEIGHT: 0})
    assert options_of(schema.RawEndpointSlice(), OF_SLICES, refuse) is PLAIN


def test_there_is_a_row_for_each_annotation() -> None:
    """The table of these tests has every annotation that is declared, and no other."""
    assert {row.full_name for row in ROWS} == {option.annotation for option in OPTIONS}


@each_annotation
def test_an_annotation_sets_its_option(row: Row) -> None:
    """A good value sets the annotation's option, and no other."""
    metadata = schema.ObjectMeta(annotations={row.full_name: row.value})
    known = OF_SLICES if row.is_of_slice else OF_SERVICES
    found = options_of(schema.ApiObject(metadata=metadata), known, refuse)
    assert found == Options.of({row.option: row.meaning})
    assert found[row.option] == row.meaning


def test_problems_name_the_object_and_the_annotation() -> None:
    """An unknown annotation of a Service or a slice is a Problem with its own code, and the object is kept."""
    for given, kind, name in (
        (raw.SERVICE, Service, "Service shop/web"),
        (raw.SLICE, EndpointSlice, "EndpointSlice shop/web-abcde"),
    ):
        annotated = raw.changed(given, "metadata|annotations", {"nftproxy.dev/new": "1"})
        plain, _ = raw.read(raw.changed(given, "metadata|annotations", {}))
        problems: list[Problem] = []
        found = parse_json(json.dumps(annotated).encode(), "", problems, kinds=INSTALLED_KINDS)
        assert isinstance(plain, kind)
        assert isinstance(found, kind)
        assert msgspec.structs.replace(found, faults=()) == plain
        (fault,) = found.faults
        assert fault.startswith("NFT211: metadata.annotations[nftproxy.dev/new]: ")
        assert [(each.object, each.field, each.code) for each in problems] == [
            (name, "metadata.annotations[nftproxy.dev/new]", Code.ANNOTATION_UNUSED)
        ]
        assert raw.read(annotated)[0] == found


# ---- limits -------------------------------------------------------------------------------------------------------


def test_limits_that_there_are() -> None:
    """The limits are five numbers of each power of ten, up to ten thousand."""
    limits = "1 2 3 5 7 10 20 30 50 70 100 200 300 500 700 1000 2000 3000 5000 7000 10000"
    assert {parse(str(number), Form.LIMIT) for number in range(1, 10_001)} == set(map(int, limits.split()))
    assert [str(limit) for limit in LADDER] == limits.split()
