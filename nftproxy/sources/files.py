"""Manifests from files.

`load` reads the paths that kubectl's -f would (files, directories, "-"), and continues after every fault.  A file that
can't be read, a document that doesn't parse and an object that isn't right become Problems, and the rest is loaded.

JSON is parsed as bytes, and becomes dicts only if it is faulty (parse.py).  All other files go through documents.py.
"""

from __future__ import annotations

import codecs
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nftproxy.api.kinds import KINDS, ObjectKind
from nftproxy.api.parse import objects_in, parse_manifest, parse_manifest_json
from nftproxy.api.pod_addresses import pods_in
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event, Listed
from nftproxy.model.mapping import Mapper, chunks, one_by_one
from nftproxy.model.objects import ClusterObject, EndpointSlice, Ignored, Node, Service, ServiceCIDR, key_of
from nftproxy.model.pods import NO_PODS, Pods
from nftproxy.sources.documents import Document, json_documents, yaml_pieces
from nftproxy.sources.reading import LARGEST_MANIFEST, read_bounded, read_stream

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
"""The suffixes of files that count in a directory, as for kubectl."""

STANDARD_INPUT = Path("-")

TOGETHER = 250
"""Documents that are parsed together."""

BYTE_ORDER_MARK = codecs.BOM_UTF8
"""Some editors begin a file with it."""


class FileContents(NamedTuple):
    """The contents of one file."""

    source: str
    values: list[ClusterObject | Ignored]
    problems: list[Problem]
    is_broken: bool  # the file, or a document in it, could not be read at all


class Manifests(NamedTuple):
    """The objects in files of manifests, and everything that can't be used."""

    objects: list[ClusterObject]  # each once
    ignored: list[Ignored]  # objects that aren't for this proxy
    problems: list[Problem]
    pods: Pods = NO_PODS  # only from `load_pods`

    def listing(self) -> list[Event]:
        """Return listings of all kinds: an object that is not in the files is gone."""
        return [
            Listed(
                kind,
                tuple(value for value in self.objects if isinstance(value, kind)),
                tuple(each for each in self.ignored if kind is Service and each.object.startswith("Service ")),
            )
            for kind in (Node, ServiceCIDR, Service, EndpointSlice)
        ]


def load(paths: Sequence[Path], kinds: Mapping[str, ObjectKind] = KINDS, each: Mapper = one_by_one) -> Manifests:
    """Load the objects in files and directories, in that order.

    In a directory, the .yaml, .yml and .json files count, in the order of their names, without hidden files and without
    subdirectories.  A file that is named is read whatever its suffix, and "-" is standard input.  If an object is given
    twice, the later version counts, and that is a Problem.  `kinds` are the kinds that matter (kinds.py).  `each` may
    parse parts of a file in other processes.
    """
    problems: list[Problem] = []
    manifests = merge(read_file(file, kinds, each) for file in _files_in(paths, problems))
    return manifests._replace(problems=problems + manifests.problems)


def load_pods(paths: Sequence[Path]) -> Pods:
    """Load the pods in files and directories.  Faults are skipped, as `load` reports them.

    Standard input isn't read, as it can be read only once.
    """
    documents = load_documents([path for path in paths if path != STANDARD_INPUT], [])
    return Pods.of(known for document in documents for known in pods_in(document))


def load_documents(paths: Sequence[Path], problems: list[Problem]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in files and directories as decoded JSON, of all kinds.  Faults are added to `problems`."""
    for file in _files_in(paths, problems):
        for document in documents_in(file, problems):
            yield from objects_in(document.value)


def _files_in(paths: Sequence[Path], problems: list[Problem]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        try:
            files += manifest_files(path) if path.is_dir() else [path]
        except OSError as error:
            problems.append(Problem(str(path), "", "", error.strerror or str(error), Code.FILE_UNREADABLE))
    return files


def manifest_files(directory: Path) -> list[Path]:
    """Return the files of a directory that count, in the order of their names.

    Raises:
        OSError: the directory can't be read.
    """
    return sorted(
        file
        for file in directory.iterdir()
        if file.suffix in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def read_file(path: Path, kinds: Mapping[str, ObjectKind] = KINDS, each: Mapper = one_by_one) -> FileContents:
    """Read a file.  Its faults become Problems."""
    faults: list[Problem] = []
    data = _read(path, faults, Code.FILE_UNREADABLE)
    parsed = [] if data is None else list(_parsed(path, data, kinds, each))
    faults += itertools.chain.from_iterable(part.faults for part in parsed)
    problems = itertools.chain.from_iterable(part.problems for part in parsed)
    values = list(itertools.chain.from_iterable(part.values for part in parsed))
    return FileContents(str(path), values, [*faults, *problems], bool(faults))


def merge(files: Iterable[FileContents]) -> Manifests:
    """Merge the contents of files.  If an object is given twice, the later version counts, and that is a Problem."""
    problems: list[Problem] = []
    found: dict[str, tuple[ClusterObject | Ignored, str]] = {}
    for file in files:
        problems += file.problems
        for value in file.values:
            name = value.object if isinstance(value, Ignored) else f"{type(value).__name__} {key_of(value)}"
            if name in found:
                text = f"was in {found[name][1]} already: this version counts"
                problems.append(Problem(file.source, name, "", text, Code.OBJECT_TWICE))
            found[name] = (value, file.source)
    values = [value for value, _ in found.values()]
    return Manifests(
        [value for value in values if not isinstance(value, Ignored)],
        [value for value in values if isinstance(value, Ignored)],
        problems,
    )


def documents_in(
    path: Path, problems: list[Problem], code: Code = Code.FILE_UNREADABLE, most: int = LARGEST_MANIFEST
) -> Iterator[Document]:
    """Yield the documents of a YAML or JSON file ("-" is standard input).  Faults are added to `problems`."""
    if (data := _read(path, problems, code, most)) is not None:
        yield from documents_of(path, data, problems, code)


def _read(path: Path, problems: list[Problem], code: Code, most: int = LARGEST_MANIFEST) -> bytes | None:
    try:
        is_input = path == STANDARD_INPUT
        data = read_stream(sys.stdin.buffer, most) if is_input else read_bounded(path, most, may_wait=True)
    except (OSError, ValueError) as error:  # ValueError: NUL in a name
        problems.append(Problem(str(path), "", "", getattr(error, "strerror", None) or str(error), code))
        return None
    return data.removeprefix(BYTE_ORDER_MARK)


class _Part(NamedTuple):
    """A part of a file, parsed."""

    values: list[ClusterObject | Ignored]
    faults: list[Problem]  # of documents that don't parse
    problems: list[Problem]


def _parsed(path: Path, data: bytes, kinds: Mapping[str, ObjectKind], each: Mapper) -> Iterable[_Part]:
    if _may_be_json(path, data):
        try:
            found = parse_manifest_json(data, str(path), kinds=kinds, each=each)
            return [_Part(values, [], problems) for values, problems in found]
        except ValueError:
            pass  # several documents, or a fault, or YAML's own braces: the slower parsers decide

    def parse(pieces: Sequence[Iterable[Document]]) -> _Part:
        part = _Part([], [], [])
        for document in _sound(path, pieces, part.faults, Code.FILE_UNREADABLE):
            place = f"line {document.line}" if document.line > 1 else ""
            part.values.extend(parse_manifest(document.value, str(path), part.problems, place=place, kinds=kinds))
        return part

    faults: list[Problem] = []
    pieces = _pieces(path, data, faults, Code.FILE_UNREADABLE)
    return [_Part([], faults, []), *each(parse, chunks(pieces, TOGETHER))]


def _may_be_json(path: Path, data: bytes) -> bool:
    return path.suffix == ".json" or data[:100].lstrip().startswith(b"{")


def documents_of(path: Path, data: bytes, problems: list[Problem], code: Code) -> Iterator[Document]:
    """Yield the documents of a file with this content.  A document that doesn't parse is added to `problems`."""
    return _sound(path, _pieces(path, data, problems, code), problems, code)


def _sound(path: Path, pieces: Iterable[Iterable[Document]], problems: list[Problem], code: Code) -> Iterator[Document]:
    for document in itertools.chain.from_iterable(pieces):
        if document.fault:
            problems.append(Problem(str(path), f"line {document.line}", "", document.fault, code))
        else:
            yield document


def _pieces(path: Path, data: bytes, problems: list[Problem], code: Code) -> Sequence[Iterable[Document]]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        problems.append(Problem(str(path), f"line {line}", "", "is not UTF-8", code))
        return []
    if _may_be_json(path, data):
        documents = list(json_documents(text))
        if path.suffix == ".json" or not any(document.fault for document in documents):
            return [documents]
    return yaml_pieces(text)
