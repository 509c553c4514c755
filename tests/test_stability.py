"""docs/stable.txt has every name that docs/stability.md promises to keep, with the version in which it came.

A line is a version and a name.  `NEXT` stands for the version that is released next, and `python -m tools.release`
replaces it.  Until then a line may go.  With UPDATE_DOCS=1 the file follows the code, but released lines stay in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import click
import msgspec
import msgspec.inspect as ms
import pytest

from nftproxy.agent.socket.answers import ClientRow, ConflictRow, EndpointRow, QuarantinedRow, ServiceRow
from nftproxy.api.decode import Shape
from nftproxy.commands import cli
from nftproxy.commands.output import TIMES
from nftproxy.commands.status import StatusReport
from nftproxy.config.shapes import Nftproxy
from nftproxy.explanation.answer import Explanation
from nftproxy.extensions.counts.agent import service_counts
from nftproxy.fleet.cluster_status import ClusterStatus
from nftproxy.installed import OPTIONS
from nftproxy.installed_fields import FIELDS
from nftproxy.model.annotations import NONE, Word
from nftproxy.model.codes import Code
from tests.conftest import CHECKOUT
from tests.support.metrics import COUNTERS, GAUGES, HISTOGRAMS
from tests.support.own_versions import OwnVersion, own_versions

FILE = CHECKOUT / "docs" / "stable.txt"
NEXT = "next"
"""The version of a line that isn't released yet."""

JSON = {
    "explain": Explanation,
    "status": StatusReport,
    "status --all-nodes": ClusterStatus,
    "list services": ServiceRow,
    "list endpoints": EndpointRow,
    "list conflicts": ConflictRow,
    "list quarantined": QuarantinedRow,
    "list silent": EndpointRow,
    "list affinity": ClientRow,
}
"""The type of the answer, or of each item, by the words of the command."""
LABELS = {
    service_counts.CONNECTIONS: "namespace service port protocol front",
    service_counts.UNSERVED: "namespace service port protocol front reason",
    service_counts.LEFT_OUT: "",
}


def stable() -> Iterator[str]:
    """Every name of the code that is stable, after the word for its kind."""
    yield from _annotations()
    own = (field.encode_name for field in msgspec.structs.fields(Nftproxy))
    declared = (field.name.partition(".")[0] for field in FIELDS)
    yield from (f"configuration nftproxy.{name}" for name in dict.fromkeys((*own, *declared)))
    yield from (f"exit {status}" for status in re.findall(r"^\| (\d) \|", _page("cli.md"), re.MULTILINE))
    for name, command in cli.commands().items():
        options = [each for each in command.params if isinstance(each, click.Option)]
        yield from (f"flag {name} {flag}" for each in options for flag in each.opts)
    for words, kind in JSON.items():
        yield from (f"json {words}: {line}" for line in fields(ms.type_info(kind), ""))
    for rows, kind_of_metric in ((COUNTERS, "counter"), (GAUGES, "gauge"), (HISTOGRAMS, "histogram")):
        yield from (f"metric {row.header[0]} {kind_of_metric} {' '.join(row.labels)}".rstrip() for row in rows)
    yield from (f"metric {name} counter {LABELS[name]}".rstrip() for name in service_counts.HELP)


def _annotations() -> Iterator[str]:
    for option in OPTIONS:
        name = option.annotation
        yield f"annotation {name} of {'EndpointSlice' if option.is_of_slices else 'Service'}"
        if isinstance(option.form, Word):
            yield from (f"annotation {name} = {word.value}" for word in option.form.words)
            yield from [f"annotation {name} = {NONE}"] * option.form.is_list


def _page(name: str) -> str:
    return (CHECKOUT / "docs" / name).read_text()


def fields(type_: ms.Type, path: str) -> Iterator[str]:
    """The paths of all fields of a JSON value, each with its type, and with the words that an enumeration may have.

    A list's path ends in "[]", and a value that may be null has a "?" after its type.
    """
    match type_:
        case ms.StructType(fields=inner):
            for each in inner:
                lines = fields(each.type, f"{path}.{each.encode_name}")
                is_time = each.encode_name in TIMES
                yield from (re.sub(" (float|int)$", " time", line) if is_time else line for line in lines)
        case ms.VarTupleType(item_type=item) | ms.ListType(item_type=item):
            yield from fields(item, f"{path}[]")
        case ms.UnionType(types=types):
            (value,) = (each for each in types if not isinstance(each, ms.NoneType))
            yield f"{path} or null"
            yield from fields(value, path)
        case ms.EnumType(cls=words):
            yield f"{path} word"
            if words is not Code:
                yield from (f"{path} = {word.value}" for word in words)
        case _:
            yield f"{path} {type(type_).__name__.removesuffix('Type').lower()}"


def updated(text: str, names: Iterator[str]) -> str:
    """The file's text with a line for each name.  A line with a version stays even if its name is gone."""
    since = {name: version for version, _, name in (line.partition(" ") for line in text.splitlines())}
    released = {name for name, version in since.items() if version != NEXT}
    return "".join(f"{since.get(name, NEXT)} {name}\n" for name in sorted({*names, *released}))


def test_every_stable_name_has_its_line() -> None:
    """docs/stable.txt has each name of the code.  With UPDATE_DOCS=1 it is written."""
    wanted = updated(FILE.read_text(), stable())
    if os.environ.get("UPDATE_DOCS"):
        FILE.write_text(wanted)
    assert FILE.read_text() == wanted


def test_no_released_name_goes() -> None:
    """Each name with a version is still in the code.  A name goes by hand, once its deprecation is over."""
    lines = [line.partition(" ") for line in FILE.read_text().splitlines()]
    assert {name for version, _, name in lines if version != NEXT} - set(stable()) == set()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("next flag a --x\n", "next flag a --y\n"),
        ("0.1.0 flag a --x\n", "0.1.0 flag a --x\nnext flag a --y\n"),
        ("0.1.0 flag a --y\n", "0.1.0 flag a --y\n"),
        ("", "next flag a --y\n"),
    ],
)
def test_released_lines_stay(before: str, after: str) -> None:
    """An update takes unreleased lines away and adds new ones.  A released line stays, so that its loss is noticed."""
    assert updated(before, iter(["flag a --y"])) == after


class _Inner(Shape):
    b: int | None = None


class _Outer(Shape):
    a: tuple[_Inner, ...]
    c: dict[str, Any]


def test_fields_of_json_are_found_at_every_depth() -> None:
    """A field within a list has its path, and a change of its type changes its line."""
    assert list(fields(ms.type_info(_Outer), "")) == [".a[].b or null", ".a[].b int", ".c dict"]


def slots(rules: str) -> set[tuple[str, str]]:
    """The elements that lead from a slot of a list to an endpoint, each with its family and map."""
    commands = re.findall(r"^add element (\S+ nftproxy [-a-z]*endpoints) \{ (.*) \}$", rules, re.MULTILINE)
    return {(container, element) for container, elements in commands for element in elements.split(", ")}


@pytest.mark.parametrize("version", own_versions(wide_maps=False), ids=lambda version: version.directory.name)
def test_nodes_of_two_versions_agree_on_slots(version: OwnVersion) -> None:
    """The present code gives each endpoint the slots that the version gave it, so a client gets the same from both."""
    kept = slots(version.tables.text)
    assert len(kept) > 40
    assert slots(version.cluster.pipeline.full_transaction({}).text) == kept
