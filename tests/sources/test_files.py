"""Manifests and configuration from files: the files that count, their formats, and the cost of a fault."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from nftproxy.api.kinds import kinds_for
from nftproxy.installed_fields import FIELDS
from nftproxy.model.addresses import Address
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.events import Listed
from nftproxy.model.objects import EndpointSlice, Ignored, Node, ObjectKey, Service, ServiceCIDR, key_of
from nftproxy.sources.config_documents import load_config
from nftproxy.sources.files import Manifests, load, merge, read_file
from tests.support.factories import full_config
from tests.support.raw import CIDR, NODE, SERVICE, SLICE, changed

ALL = [SERVICE, SLICE, NODE, CIDR]
LIST = {"apiVersion": "v1", "kind": "List", "items": ALL}
EXTERNAL = Ignored(
    "Service shop/web",
    "its type is ExternalName",
    ObjectKey("shop", "web"),
    (Address("10.96.0.10"), Address("fd00:96::10")),
)
"""SERVICE as an ExternalName."""
CONFIG = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def write(path: Path, text: str | bytes) -> Path:
    """A file with this text."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def node(name: str) -> str:
    """A Node's manifest in YAML."""
    return f"apiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n"


def names(manifests: Manifests) -> list[str]:
    """The objects that were found."""
    return [str(key_of(value)) for value in manifests.objects]


def problems(manifests: Manifests, directory: Path) -> list[str]:
    """The problems that were found, with file names relative to the directory."""
    return [str(problem).replace(f"{directory}/", "") for problem in manifests.problems]


# ---- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", yaml.safe_dump_all(ALL)),
        ("a.yaml", yaml.safe_dump(LIST)),
        ("a.json", json.dumps(LIST, indent=2)),
        ("a.json", "\n".join(map(json.dumps, ALL))),
        (
            "a.yaml",
            json.dumps(LIST, indent="\t"),
        ),
        ("a.yaml", "".join(f"{json.dumps(each)}\n---\n" for each in ALL)),
        ("a.txt", "\n".join(map(json.dumps, ALL))),
        ("a", "\ufeff" + yaml.safe_dump_all(ALL)),
        ("a.json", "\ufeff" + json.dumps(LIST)),
    ],
)
def test_formats(tmp_path: Path, name: str, text: str) -> None:
    """The same objects are found in YAML and JSON, in documents or in a List, with any file name."""
    found = load([write(tmp_path / name, text)])
    assert problems(found, tmp_path) == []
    assert [type(value) for value in found.objects] == [Service, EndpointSlice, Node, ServiceCIDR]
    assert names(found) == ["shop/web", "shop/web-abcde", "node-a", "kubernetes"]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n---\n", " \n\n"])
@pytest.mark.parametrize("name", ["a.yaml", "a.yml"])
def test_empty_files(tmp_path: Path, name: str, text: str) -> None:
    """A file may hold nothing."""
    assert load([write(tmp_path / name, text)]) == Manifests([], [], [])


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path "-" is standard input."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(node("a").encode())))
    assert names(load([Path("-")])) == ["a"]


def test_what_is_not_for_this_proxy_is_told_apart(tmp_path: Path) -> None:
    """Objects that are another's are given with the reason."""
    found = load([write(tmp_path / "a.json", json.dumps(changed(SERVICE, "spec.type", "ExternalName")))])
    assert found == Manifests([], [EXTERNAL], [])


# ---- directories ---------------------------------------------------------------------------------------------------


def test_a_directory(tmp_path: Path) -> None:
    """The YAML and JSON files of a directory count, in the order of their names, without hidden and deeper files."""
    for name in ("b.yaml", "a.yml", ".c.yaml", "d.txt", "e.yaml~"):
        write(tmp_path / name, node(name.strip(".~")))
    write(tmp_path / "c.json", json.dumps(yaml.safe_load(node("c.json"))))
    (tmp_path / "sub.yaml").mkdir()
    write(tmp_path / "sub.yaml" / "x.yaml", node("x"))
    assert names(load([tmp_path])) == ["a.yml", "b.yaml", "c.json"]


def test_links_in_a_directory(tmp_path: Path) -> None:
    """A file may be a link, as in a mounted ConfigMap."""
    (tmp_path / "..data").mkdir()
    write(tmp_path / "..data" / "a.yaml", node("a"))
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    (tmp_path / "gone.yaml").symlink_to("..data/gone.yaml")
    assert load([tmp_path]).problems == []
    assert names(load([tmp_path])) == ["a"]


def test_paths_in_their_order(tmp_path: Path) -> None:
    """Files and directories are read in the order in which they are named."""
    (tmp_path / "d").mkdir()
    write(tmp_path / "d" / "a.yaml", node("a"))
    paths = [write(tmp_path / "z.yaml", node("z")), tmp_path / "d", write(tmp_path / "b.yaml", node("b"))]
    assert names(load(paths)) == ["z", "a", "b"]


# ---- faults --------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """An unreadable file is a problem, and the other files are read."""
    found = load([tmp_path / "gone.yaml", write(tmp_path / "a.yaml", node("a"))])
    assert names(found) == ["a"]
    assert problems(found, tmp_path) == ["gone.yaml: No such file or directory"]


def test_a_name_that_can_not_be_asked_for(tmp_path: Path) -> None:
    """A path that the system or Python refuses, in words of its version, is a problem like any other."""
    found = load([tmp_path / ("x" * 300), tmp_path / "a\0b"])
    too_long, null = (problem.message for problem in found.problems)
    assert too_long == "File name too long"
    assert "embedded null" in null


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "a.yaml",
            node("a") + "---\na: b\n  c: d\n---\n" + node("b"),
            "a.yaml: line 7: is not YAML: mapping values are not allowed in this context",
        ),
        (
            "a.yaml",
            node("a") + "---\nkind: Node\n---\n" + node("b"),
            "a.yaml: line 5: apiVersion: is missing",
        ),
        (
            "a.yaml",
            node("a") + "---\n" + node("B") + "---\n" + node("b"),
            "a.yaml: Node (line 5): metadata.name: 'B' is not a DNS name that a Node may have",
        ),
        (
            "a.yaml",
            node("a") + "---\n" + node("no") + "---\n" + node("b"),
            "a.yaml: Node (line 5): metadata.name: false is not a string",
        ),
        ("a.yaml", node("a") + "---\n- x\n---\n" + node("b"), "a.yaml: line 5: a list is not an object"),
    ],
)
def test_a_bad_document_is_lost_alone(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """A document that doesn't parse, or isn't right, is a problem with its line.  The other documents are read."""
    found = load([write(tmp_path / name, text)])
    assert names(found) == ["a", "b"]
    assert problems(found, tmp_path) == [problem]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.json", '{"apiVersion": "v1",\n"kind": }', "a.json: line 2: is not JSON: Expecting value (column 9)"),
        ("a.json", "x: 1", "a.json: line 1: is not JSON: Expecting value (column 1)"),
        ("a.json", "[]", "a.json: a list is not an object"),
        ("a.json", "{} {}", "a.json: kind: is missing"),
        ("a.yaml", "{a: [}", "a.yaml: line 1: is not YAML: did not find expected node content"),
        ("a.yaml", b"a: 1\nb: \xff\n", "a.yaml: line 2: is not UTF-8"),
        ("a.yaml", "a: 1\na: 2\n", "a.yaml: line 2: is not YAML for a manifest: the key 'a' is given twice"),
    ],
)
def test_a_bad_file(tmp_path: Path, name: str, text: str | bytes, problem: str) -> None:
    """A fault in a file is a problem with the file and the line."""
    found = load([write(tmp_path / name, text)])
    assert found.objects == []
    assert problems(found, tmp_path)[0] == problem


def test_yaml_with_braces(tmp_path: Path) -> None:
    """A YAML file that begins like JSON is still YAML."""
    found = load([write(tmp_path / "a.yaml", "{apiVersion: v1, kind: Node, metadata: {name: a}}\n")])
    assert (names(found), found.problems) == (["a"], [])


def test_a_bad_field_names_file_and_object(tmp_path: Path) -> None:
    """A problem with a field tells file, object and field."""
    found = load([write(tmp_path / "a.yaml", yaml.safe_dump(changed(SERVICE, "spec.ports.0.port", 0)))])
    assert problems(found, tmp_path) == [
        "a.yaml: Service shop/web: spec.ports[0].port: 0 is not a port from 1 to 65535"
    ]


def test_of_an_object_given_twice_the_later_one_counts(tmp_path: Path) -> None:
    """The later version replaces the earlier, even if it isn't for this proxy, and that is a problem."""
    write(tmp_path / "a.json", json.dumps(SERVICE))
    write(tmp_path / "b.json", json.dumps(changed(SERVICE, "spec.type", "ExternalName")))
    found = load([tmp_path])
    assert found.objects == []
    assert found.ignored == [EXTERNAL]
    assert problems(found, tmp_path) == ["b.json: Service shop/web: was in a.json already: this version counts"]


@pytest.mark.parametrize(
    ("text", "is_broken"),
    [("a: [\n", True), (node("a") + "---\na: [\n", True), (node("A"), False), (node("a"), False), ("", False)],
)
def test_broken_files_are_told(tmp_path: Path, text: str, is_broken: bool) -> None:
    """A file is broken if a document in it doesn't parse, not if an object in it is bad."""
    assert read_file(write(tmp_path / "a.yaml", text)).is_broken is is_broken


def test_a_listing_holds_every_kind(tmp_path: Path) -> None:
    """A listing has all objects of each kind, so an object that isn't there is gone."""
    contents = read_file(write(tmp_path / "a.yaml", node("a")))
    counts = [(event.kind, len(event.objects)) for event in merge([contents]).listing() if isinstance(event, Listed)]
    assert counts == [(Node, 1), (ServiceCIDR, 0), (Service, 0), (EndpointSlice, 0)]


# ---- configuration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.conf", CONFIG + "nftables: {masqueradeAll: true}\n"),
        ("config.yaml", "---\n" + CONFIG + "nftables:\n  masqueradeAll: yes\n---\n"),
        ("config.json", json.dumps(yaml.safe_load(CONFIG) | {"nftables": {"masqueradeAll": True}})),
    ],
)
def test_configuration(tmp_path: Path, name: str, text: str) -> None:
    """The configuration may be YAML or JSON."""
    assert load_config(write(tmp_path / name, text), FIELDS) == (full_config(masquerade_all=True), [])


def test_configuration_warnings(tmp_path: Path) -> None:
    """Unknown fields are warnings that name the file."""
    path = write(tmp_path / "config.yaml", CONFIG + "speed: 1\n")
    problem = Problem(str(path), "KubeProxyConfiguration", "speed", "unknown field", Code.CONFIGURATION_UNKNOWN_FIELD)
    assert load_config(path, FIELDS) == (full_config(), [problem])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "NFT101: config.yaml: No such file or directory"),
        ("", "NFT101: config.yaml: holds 0 documents where one is needed"),
        (CONFIG + "---\n" + CONFIG, "NFT101: config.yaml: holds 2 documents where one is needed"),
        (
            "kind: ConfigMap\ndata: {a: 'kind: Pod'}\n",
            "NFT101: config.yaml: has 0 KubeProxyConfigurations where one is needed",
        ),
        ("kind: List\nitems: []\n", "NFT101: config.yaml: has 0 KubeProxyConfigurations where one is needed"),
        ("a: [", "NFT101: config.yaml: line 1: is not YAML: did not find expected node content"),
        (CONFIG + "mode: on\n", "NFT102: config.yaml: KubeProxyConfiguration: mode: true is not a string"),
        (
            "kind: Config\n",
            "NFT102: config.yaml: KubeProxyConfiguration: apiVersion: null is not kubeproxy.config.k8s.io/v1alpha1",
        ),
    ],
)
def test_bad_configuration(tmp_path: Path, text: str | None, problem: str) -> None:
    """An unreadable or invalid configuration is an error with the file and the place."""
    path = tmp_path / "config.yaml"
    if text is not None:
        write(path, text)
    with pytest.raises(BadInput) as caught:
        load_config(path, FIELDS)
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines()[0] == problem


# ---- for a proxy with a name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_a_named_proxy_reads_objects_with_its_label(tmp_path: Path, name: str) -> None:
    """A proxy with a name reads the objects with its label, and a proxy without a name all other objects."""
    labelled = changed(SERVICE, "metadata|labels|service.kubernetes.io/service-proxy-name", "canary")
    both = [changed(labelled, "metadata|name", "ours"), SERVICE]
    is_list = name == "a.json"
    listing = json.dumps({"apiVersion": "v1", "kind": "List", "items": both})
    write(tmp_path / name, listing if is_list else yaml.safe_dump_all(both))
    assert names(load([tmp_path / name], kinds_for("canary"))) == ["shop/ours"]
    assert names(load([tmp_path / name])) == ["shop/web"]
