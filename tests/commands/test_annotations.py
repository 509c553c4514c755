"""`diff` and `check` know each annotation: its changes, whether the kernel takes them, and the fault of a bad value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from nftproxy.model.annotations import PREFIX
from tests.support import objects
from tests.support.annotations import ROWS, Row, each_annotation
from tests.support.command import Done, nftproxy

Annotations = Mapping[str, str]


def manifests(directory: Path, name: str, service: Annotations, a_slice: Annotations) -> Path:
    """A file with a Service in all ways that has annotations, as has one of its slices, and a plain Service."""
    given = {"type": "LoadBalancer", "externalIPs": ["203.0.113.9"], "loadBalancerSourceRanges": ["198.51.100.0/24"]}
    own, other = ({"annotations": {PREFIX + key: value for key, value in each.items()}} for each in (service, a_slice))
    pods = [objects.endpoint(f"10.1.{number}.4", "node-b", "ready", zone=zone) for number, zone in enumerate("abb")]
    status = objects.balancer("203.0.113.7")
    made = [
        objects.service("web", given, vips=["10.96.0.10"], ports=["80:30080"], status=status, metadata=own),
        objects.endpoint_slice("web-1", *pods[:2]),
        objects.endpoint_slice("web-2", pods[2], metadata=other),
        objects.service("plain", vips=["10.96.0.20"]),
        objects.endpoint_slice("plain-1", "10.1.0.5@node-a", service="plain"),
        objects.node("node-a", "192.168.0.2", zone="a"),
    ]
    file = directory / f"{name}.yaml"
    file.write_text("\n---\n".join(map(json.dumps, made)))
    return file


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The file without annotations."""
    return manifests(tmp_path, "plain", {}, {})


def annotated(directory: Path, values: Mapping[Row, str], **more: str) -> Path:
    """The file with these annotations, and the Service has more."""
    service = {row.name: value for row, value in values.items() if not row.is_of_slice}
    a_slice = {row.name: value for row, value in values.items() if row.is_of_slice}
    return manifests(directory, "annotated", {**more, **service}, a_slice)


def diff(old: Path, new: Path, *options: str) -> Done:
    """Run `diff` from an old file to a new file."""
    return nftproxy("diff", old, new, "--node", "node-a", "--family", "ip", *options)


def elements(text: str, verb: str) -> set[str]:
    """The elements that a transaction adds or deletes, without the elements that lead to chains, which are kept."""
    found = re.findall(rf"^{verb} element ip nftproxy (?!\S*draws )(\S+) {{ (.*) }}$", text, re.MULTILINE)
    return {f"{name} {each}" for name, listed in found for each in listed.split(", ")}


def report(file: Path, row: Row) -> str:
    """The report of a bad value."""
    name = "EndpointSlice shop/web-2" if row.is_of_slice else "Service shop/web"
    return f"NFT211: {file}: {name}: metadata.annotations[{row.full_name}]: {row.problem}"


@each_annotation
def test_diff_shows_what_an_annotation_changes(tmp_path: Path, plain: Path, row: Row) -> None:
    """The transaction has the annotation's text and sets, nothing of a plain Service, and the way back undoes it.

    An annotation that only explanations show changes no rule.
    """
    new = annotated(tmp_path, {row: row.value})
    there, back = diff(plain, new), diff(new, plain)
    differs = int(bool(row.added))
    assert (there.status, there.err, back.status, back.err) == (differs, "", differs, "")
    for text in row.added:
        assert text in there.out
    assert set(row.sets) <= {each.partition(" ")[0] for each in elements(there.out, "add")}
    assert "10.96.0.20" not in there.out + back.out
    assert elements(back.out, "delete") == elements(there.out, "add")
    assert elements(back.out, "add") == elements(there.out, "delete")


@pytest.mark.slow
@each_annotation
def test_diff_reports_a_bad_value(tmp_path: Path, plain: Path, row: Row) -> None:
    """A bad value is reported with file, object and field, and the annotation beside it has its effect."""
    is_denied = row.name == "denied-source-ranges"
    other = {"client-connections": "100"} if is_denied else {"denied-source-ranges": "192.0.2.0/24"}
    bad, good = annotated(tmp_path, {row: row.bad}, **other), manifests(tmp_path, "good", other, {})
    assert diff(plain, bad) == Done(1, diff(plain, good).out, f"warning: {report(bad, row)}\n")
    assert diff(plain, bad, "--strict") == Done(2, "", f"error: {report(bad, row)}\n")


@pytest.mark.parametrize(("service", "a_slice"), [({"algoritm": "random"}, {}), ({}, {"algorithm": "random"})])
def test_diff_reports_an_unknown_annotation(
    tmp_path: Path, plain: Path, service: Annotations, a_slice: Annotations
) -> None:
    """An annotation that is unknown on that kind of object is reported, and no rule changes."""
    new = manifests(tmp_path, "new", service, a_slice)
    (name,), kind = {**service, **a_slice}, "Service shop/web" if service else "EndpointSlice shop/web-2"
    problem = f"NFT211: {new}: {kind}: metadata.annotations[{PREFIX}{name}]: is not known: it has no effect"
    assert diff(plain, new) == Done(0, "", f"warning: {problem}\n")


@pytest.mark.usefixtures("namespace")
def test_check_tries_all_annotations(tmp_path: Path, plain: Path) -> None:
    """The kernel takes the rules of all annotations together, more than without, and nothing is reported."""
    done = nftproxy("check", annotated(tmp_path, {row: row.value for row in ROWS}), "--node", "node-a")
    assert (done.status, done.err) == (0, "")
    assert loaded(done) > loaded(nftproxy("check", plain, "--node", "node-a"))


@pytest.mark.usefixtures("namespace")
def test_check_reports_bad_values(tmp_path: Path, plain: Path) -> None:
    """All bad values are reported, and the rules equal the rules without annotations."""
    bad = annotated(tmp_path, {row: row.bad for row in ROWS})
    done = nftproxy("check", bad, "--node", "node-a")
    assert (done.status, set(done.err.splitlines())) == (0, {f"warning: {report(bad, row)}" for row in ROWS})
    assert loaded(done) == loaded(nftproxy("check", plain, "--node", "node-a"))
    strict = nftproxy("check", bad, "--node", "node-a", "--strict")
    assert (strict.status, strict.out, len(strict.err.splitlines())) == (2, "", len(ROWS))


def loaded(done: Done) -> list[int]:
    """How many sets, maps, chains and elements `check` says were loaded."""
    return [int(number) for number in re.findall(r"(\d+) (?:sets|maps|chains|elements)", done.out)]
