"""Each field that the parser reads, in each form that an API server of 1.28 to 1.36 has accepted: docs/fields.md."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from msgspec import structs

from nftproxy.api.decode import Shape
from nftproxy.api.parse import Outcome
from nftproxy.model.codes import Code
from nftproxy.model.objects import EndpointSlice, Service
from tests.support.fields import ABSENT, ADDRESSES, FIELDS, IPV4_ADDRESSES, OBJECTS, OLD, RANGES, Field, Form, lists
from tests.support.raw import read

PAGE = Path("docs/fields.md")

CASES = [(field, form) for field in FIELDS for form in field.forms]


def cases_of(*forms: Form) -> list[tuple[Field, Form]]:
    """The cases with one of these forms, alone or in a list, that 1.36 denies."""
    denied = [form for form in (*forms, *lists(forms)) if form.accepted == OLD]
    return [(field, form) for field, form in CASES if form in denied]


def named(case: object) -> str:
    """A name for a parameter of a test."""
    return str(
        case.value if isinstance(case, Form) else f"{case.kind}.{case.name}" if isinstance(case, Field) else case
    )


def fields_below(shape: type[Shape], path: str = "") -> Iterator[str]:
    """The paths of the fields that decoding to a shape keeps."""
    for field in structs.fields(shape):
        inner = list(shapes_in(field.type))
        below = f"{path}.{field.encode_name}".removeprefix(".")
        yield from (each for found in inner for each in fields_below(found, below)) if inner else [below]


def shapes_in(kind: Any) -> Iterator[type[Shape]]:
    """The shapes that a type is made of."""
    if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, Shape):
        yield kind
    for argument in get_args(kind):
        yield from shapes_in(argument)


@pytest.mark.parametrize("shape", OBJECTS, ids=lambda shape: shape.__name__)
def test_no_field_is_missing(shape: type[Shape]) -> None:
    """Every field that decoding keeps has its forms in the table, and the table has no other field."""
    assert {field.name for field in FIELDS if field.shape is shape} == set(fields_below(shape))


def without_faults(outcome: Outcome) -> Outcome:
    """The object without its reports, which are compared alone."""
    return structs.replace(outcome, faults=()) if isinstance(outcome, Service | EndpointSlice) else outcome


def modern(value: object) -> object:
    """The value of a field with the spelling that API servers never denied."""
    if isinstance(value, list):
        return [modern(each) for each in value]
    spellings: dict[object, object] = {
        **dict.fromkeys([form.value for form in IPV4_ADDRESSES], "10.96.11.12"),
        **dict.fromkeys([form.value for form in RANGES if "." in str(form.value)], "10.96.0.0/16"),
        **dict.fromkeys(["fd00:96::c/112", "fd00:96::/0112"], "fd00:96::/112"),
        "fd00:96::010.0.0.1": "fd00:96::10.0.0.1",
    }
    return spellings[value]


@pytest.mark.parametrize(("field", "form"), cases_of(*ADDRESSES, *RANGES), ids=named)
def test_stored_spellings(field: Field, form: Form) -> None:
    """Leading zeros are decimal, IPv4-mapped IPv6 is IPv4, and bits beyond the length don't count, in each field."""
    outcome, problems = field.outcome(form.value)
    expected, silent = field.outcome(modern(form.value))
    assert without_faults(outcome) == expected
    assert silent == []
    bits_alone = str(form.value).strip("[']") in ("10.96.11.12/16", "fd00:96::c/112")
    assert [each.code for each in problems] == ([] if bits_alone else [Code.OLD_SPELLING])


@pytest.mark.parametrize(("field", "form"), CASES, ids=named)
def test_both_ways_in_agree(field: Field, form: Form) -> None:
    """The bytes of an object are read as its decoded JSON is."""
    outcome, problems = field.outcome(form.value)
    assert read(field.example(form.value)) == (outcome, list(map(str, problems)))


def page() -> str:
    """docs/fields.md, filled by the parser."""
    head, *_ = PAGE.read_text().partition("\n## ")
    return head + "".join(section(kind) for kind in dict.fromkeys(field.kind for field in FIELDS))


def section(kind: str) -> str:
    """The table of a kind."""
    lines = [f"\n## {kind}", "", "| field | value | accepted | read as | code |", "| --- | --- | --- | --- | --- |"]
    shown = ""
    for field in FIELDS:
        if field.kind == kind:
            lines += rows(field, "" if field.name == shown else f"`{field.name}`")
            shown = field.name
    return "\n".join([*lines, ""])


def rows(field: Field, name: str) -> Iterator[str]:
    """The rows of a field, a row for all of its forms that are read alike.  The first row has the name."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for form in field.forms:
        _, problems = field.outcome(form.value)
        codes = ", ".join(f"[{code}](codes.md#{code.lower()})" for code in sorted({each.code for each in problems}))
        shown = "absent" if form.value is ABSENT else f"`{json.dumps(form.value)}`"
        alike.setdefault((form.accepted, field.shown(form.value), codes), []).append(shown)
    for (accepted, read_as, codes), values in alike.items():
        yield f"| {name} | {', '.join(values)} | {accepted} | {read_as} | {codes} |"
        name = ""


def test_the_page_has_what_is_done() -> None:
    """docs/fields.md says what is done with each form, and with UPDATE_DOCS=1 it is written."""
    wanted = page()
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted
