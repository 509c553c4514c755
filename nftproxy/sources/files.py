"""Manifests and configuration from files.

`load` reads the paths that kubectl's -f would (files, directories, "-"), and goes on after whatever is wrong with one:
a file that can't be read, a document that doesn't parse, an object that isn't right are Problems, the rest is loaded.

JSON is handed on as bytes, and never becomes dicts unless it is faulty (parse.py); all else goes by documents.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from nftproxy.api.config import EMPTY_CONFIG, parse_config
from nftproxy.api.flags import flags_by_path, other_warnings, override
from nftproxy.api.kinds import KINDS, Kind
from nftproxy.api.parse import parse_manifest, parse_manifest_json
from nftproxy.api.pods import pods_in
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.events import Event, Listed, key_of
from nftproxy.model.objects import ClusterObject, EndpointSlice, Ignored, Node, Service, ServiceCIDR
from nftproxy.model.pods import NO_PODS, Pods
from nftproxy.model.settings import Config
from nftproxy.sources.config_maps import configurations, unfolded
from nftproxy.sources.documents import Document, json_documents, to_yaml, yaml_documents
from nftproxy.sources.reading import LARGEST_CONFIG, LARGEST_MANIFEST, read_bounded, read_stream

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
"""The files of a directory that count, as for kubectl."""

STANDARD_INPUT = Path("-")


class FileContents(NamedTuple):
    """What one file holds; `is_broken` says that it, or one of its documents, could not be read at all."""

    source: str
    values: list[ClusterObject | Ignored]
    problems: list[Problem]
    is_broken: bool


class Manifests(NamedTuple):
    """What files hold: objects (each once), those that aren't for this proxy, and all that was wrong.

    `pods` are known only where somebody asks for them (`load_pods`).
    """

    objects: list[ClusterObject]
    ignored: list[Ignored]
    problems: list[Problem]
    pods: Pods = NO_PODS

    def listing(self) -> list[Event]:
        """All of it as events: what is not here is gone."""
        return [
            Listed(kind, tuple(value for value in self.objects if isinstance(value, kind)))
            for kind in (Node, ServiceCIDR, Service, EndpointSlice)
        ]


def load(paths: Sequence[Path], kinds: Mapping[str, Kind] = KINDS) -> Manifests:
    """The objects in files and directories, in that order.

    A directory counts with its .yaml, .yml and .json files in the order of their names, except hidden ones and without
    what is in directories below it.  A file that is named is read whatever its suffix; "-" is standard input.  Of an
    object given twice the later one counts, and that is a Problem.  `kinds` are those that matter (kinds.py).
    """
    problems: list[Problem] = []
    files: list[Path] = []
    for path in paths:
        try:
            files += manifest_files(path) if path.is_dir() else [path]
        except OSError as error:
            problems.append(Problem(str(path), "", "", error.strerror or str(error), Code.FILE_UNREADABLE))
    manifests = merge(read_file(file, kinds) for file in files)
    return manifests._replace(problems=problems + manifests.problems)


def load_pods(paths: Sequence[Path]) -> Pods:
    """The pods that files and directories know of; what can't be read is passed over, as `load` reports it.

    Standard input isn't read: it can be read once only.
    """
    files: list[Path] = []
    for path in paths:
        with contextlib.suppress(OSError):
            files += manifest_files(path) if path.is_dir() else [path]
    return Pods.of(
        known
        for file in files
        if file != STANDARD_INPUT and (data := _read(file, [], Code.FILE_UNREADABLE)) is not None
        for document in _documents(file, data, [], Code.FILE_UNREADABLE)
        for known in pods_in(document.value)
    )


def manifest_files(directory: Path) -> list[Path]:
    """The files of a directory that count, in the order of their names.

    Raises:
        OSError: the directory can't be read.
    """
    return sorted(
        file
        for file in directory.iterdir()
        if file.suffix in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def read_file(path: Path, kinds: Mapping[str, Kind] = KINDS) -> FileContents:
    """What one file holds, whatever is wrong with it."""
    faults: list[Problem] = []
    problems: list[Problem] = []
    values = list(_load_file(path, kinds, faults, problems))
    return FileContents(str(path), values, faults + problems, bool(faults))


def merge(files: Iterable[FileContents]) -> Manifests:
    """The contents of several files as one; of an object given twice the later one counts, and that is a Problem."""
    problems: list[Problem] = []
    found: dict[str, tuple[ClusterObject | Ignored, str]] = {}
    for file in files:
        problems += file.problems
        for value in file.values:
            name = value.object if isinstance(value, Ignored) else f"{type(value).__name__} {key_of(value)}"
            if name in found:
                text = f"was in {found[name][1]} already: this one counts"
                problems.append(Problem(file.source, name, "", text, Code.OBJECT_TWICE))
            found[name] = (value, file.source)
    values = [value for value, _ in found.values()]
    return Manifests(
        [value for value in values if not isinstance(value, Ignored)],
        [value for value in values if isinstance(value, Ignored)],
        problems,
    )


def load_documents(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The objects in files and directories as decoded JSON, whatever they are, and what can't be read; as `load` else.

    The items of lists stand for themselves, with the kind and version that a typed list gives them.
    """
    problems: list[Problem] = []
    found: list[dict[str, Any]] = []
    for path in paths:
        for file in manifest_files(path) if path.is_dir() else [path]:
            data = _read(file, problems, Code.FILE_UNREADABLE)
            for document in () if data is None else _documents(file, data, problems, Code.FILE_UNREADABLE):
                found += _items(document.value)
    return found, problems


def _items(value: object) -> Iterator[dict[str, Any]]:
    if not isinstance(value, dict):
        return
    kind = value.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List"):
        yield value
        return
    defaults = {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    for item in value.get("items") or ():
        if isinstance(item, dict):
            yield from _items(defaults | item)


def load_config(path: Path | None, flags: Mapping[str, str] = MappingProxyType({})) -> tuple[Config, list[Problem]]:
    """The KubeProxyConfiguration in a YAML or JSON file, and warnings about fields that aren't known.

    Args:
        path: the file; without one, the defaults are what flags go before.
        flags: texts of kube-proxy's flags by their names (flags.py).

    Raises:
        BadInput: the file can't be read, or isn't one document, or the configuration is wrong; with every fault.
    """
    raw = EMPTY_CONFIG if path is None else config_document(path)
    overridden = override(raw, flags) if isinstance(raw, Mapping) else raw
    config, warnings = parse_config(overridden, "flags" if path is None else str(path), flags_by_path(flags))
    return config, [*warnings, *other_warnings(flags)]


def write_config(path: Path, config: bytes) -> None:
    """Write a configuration that `configz` has made to a YAML file, in place of what is there.

    Raises:
        BadInput: the file can't be written.
    """
    (document,) = msgspec.json.decode(config).values()
    try:
        path.write_text(to_yaml([document]))
    except OSError as error:
        raise BadInput([_unusable(path, error.strerror or str(error))]) from error


def _unusable(path: Path, why: str) -> Problem:
    return Problem(str(path), "", "", why, Code.CONFIGURATION_UNREADABLE)


def config_document(path: Path) -> object:
    """The one document of a configuration file, decoded; of a ConfigMap the configuration that it holds.

    Raises:
        BadInput: the file or what is in a ConfigMap can't be read, or there isn't one configuration.
    """
    documents = read_documents(path)
    if len(documents) != 1:
        raise BadInput([_unusable(path, f"holds {len(documents)} documents where one is needed")])
    found = configurations(unfolded(documents, str(path)))
    return found[0] if len(found) == 1 else documents[0]


def read_documents(path: Path) -> list[object]:
    """The documents of a configuration in YAML or JSON, without empty ones; "-" is standard input.

    Raises:
        BadInput: the file can't be read, or one of its documents.
    """
    problems: list[Problem] = []
    code = Code.CONFIGURATION_UNREADABLE
    data = _read(path, problems, code, LARGEST_CONFIG)
    documents = (
        [] if data is None else [it.value for it in _documents(path, data, problems, code) if it.value is not None]
    )
    if problems:
        raise BadInput(problems)
    return documents


# Files


def _read(path: Path, problems: list[Problem], code: Code, most: int = LARGEST_MANIFEST) -> bytes | None:
    try:
        is_input = path == STANDARD_INPUT
        data = read_stream(sys.stdin.buffer, most) if is_input else read_bounded(path, most, may_wait=True)
    except (OSError, ValueError) as error:  # ValueError: NUL in a name
        problems.append(Problem(str(path), "", "", getattr(error, "strerror", None) or str(error), code))
        return None
    return data.removeprefix(b"\xef\xbb\xbf")


def _load_file(
    path: Path, kinds: Mapping[str, Kind], faults: list[Problem], problems: list[Problem]
) -> Iterator[ClusterObject | Ignored]:
    data = _read(path, faults, Code.FILE_UNREADABLE)
    if data is None:
        return
    if _may_be_json(path, data):
        try:
            yield from parse_manifest_json(data, str(path), problems, kinds=kinds)
            return
        except ValueError:
            pass  # several documents, or a fault, or YAML's own braces: the slower ways decide
    for document in _documents(path, data, faults, Code.FILE_UNREADABLE):
        place = f"line {document.line}" if document.line > 1 else ""
        yield from parse_manifest(document.value, str(path), problems, place=place, kinds=kinds)


def _may_be_json(path: Path, data: bytes) -> bool:
    return path.suffix == ".json" or data[:100].lstrip().startswith(b"{")


def _documents(path: Path, data: bytes, problems: list[Problem], code: Code) -> Iterator[Document]:
    """The documents of a YAML or JSON file; one that doesn't parse is a Problem instead."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        problems.append(Problem(str(path), f"line {line}", "", "is not UTF-8", code))
        return
    for document in _split(path, data, text):
        if document.fault:
            problems.append(Problem(str(path), f"line {document.line}", "", document.fault, code))
        else:
            yield document


def _split(path: Path, data: bytes, text: str) -> Iterable[Document]:
    if _may_be_json(path, data):
        documents = list(json_documents(text))
        if path.suffix == ".json" or not any(document.fault for document in documents):
            return documents
    return yaml_documents(text)
