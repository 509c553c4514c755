"""From the text of a file to its documents: YAML as kubectl reads it, and JSON.

YAML is cut into documents first, at the lines that begin with "---".  YAML allows such lines nowhere else, not even in
quoted text, so a document that doesn't parse costs no other document.  The values of a document are built straight from
libyaml's events, for two reasons:

* Speed.  CPU seconds for 45 MB, 10,000 Services and as many EndpointSlices of 10 endpoints (Python 3.11, PyYAML 6.0):

      CSafeLoader 8.9    these events 3.3    ryaml 0.5 2.1    yaml-rs 0.1 1.1    (and as JSON 0.5, parsed and all)

  ryaml has no merge keys and no wheels for musl, and would be another binary to trust.  yaml-rs crashes the process on
  deep nesting.  PyYAML is needed anyway (by kr8s).
* YAML's traps.  kubectl turns YAML into JSON and continues from there.  `_Builder` does so too, with the same scalars:
  a bare `no` is false, and a time stays text.  It rejects everything that has no place in a manifest: a key given
  twice, tags for types that JSON lacks, extreme nesting, and aliases that expand to more than any manifest may hold.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)

from nftproxy.api.decode import show

MAX_DEPTH = 100
"""Levels of nesting in YAML.  The deepest built-in kinds of Kubernetes have some 20."""

MAX_UNFOLDED = 3_000_000
"""Characters that the aliases of a document may expand to: the API takes no request of more than 3 MiB."""


class Document(NamedTuple):
    """One document of a file."""

    line: int  # where the document begins, or where it fails to parse
    value: object
    fault: str = ""  # why the document doesn't parse


def to_yaml(documents: Iterable[object]) -> str:
    """Return values of JSON's types as YAML documents for people."""
    return yaml.safe_dump_all(documents, sort_keys=False, default_flow_style=False)


# JSON


_NOT_BLANK = re.compile(r"[^ \t\n\r]")


def json_documents(text: str) -> Iterator[Document]:
    """Yield JSON texts in a row, decoded by the standard library: slow, but it tells where a text ends."""
    decoder = json.JSONDecoder()
    begin = _NOT_BLANK.search(text)
    line, counted = 1, 0
    while begin:
        line += text.count("\n", counted, begin.start())
        counted = begin.start()
        try:
            value, end = decoder.raw_decode(text, begin.start())
        except json.JSONDecodeError as error:
            yield Document(error.lineno, None, f"is not JSON: {error.msg} (column {error.colno})")
            return
        except (ValueError, RecursionError):
            yield Document(line, None, "can't be read as JSON: a number is too long, or values are nested too deeply")
            return
        yield Document(line, value)
        begin = _NOT_BLANK.search(text, end)


# YAML


class _Malformed(Exception):
    """A document can't be read.  `line` is a line of the text, counted from 0."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


_DOCUMENT_START = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)


def yaml_documents(text: str, *, may_repeat_keys: bool = False) -> Iterator[Document]:
    """Yield the documents of YAML text.  Text before the first "---" is a document too, unless it is empty.

    Args:
        text: the documents.
        may_repeat_keys: whether the last value of a key counts, as in kubeconfigs, instead of an error.
    """
    return itertools.chain.from_iterable(yaml_pieces(text, may_repeat_keys=may_repeat_keys))


def yaml_pieces(text: str, *, may_repeat_keys: bool = False) -> list[Iterator[Document]]:
    """Return the documents of YAML text in pieces, each of which is parsed when it is iterated over."""
    starts = [_before_directives(text, match.start()) for match in _DOCUMENT_START.finditer(text)]
    pieces = []
    line = 1
    for begin, end in itertools.pairwise([0, *starts, len(text)]):
        if begin != end:
            pieces.append(_read_yaml(text[begin:end], line, may_repeat_keys))
            line += text.count("\n", begin, end)
    return pieces


def _before_directives(text: str, start: int) -> int:
    """Return the first line of the document of a "---": directives, lines that begin with "%", may stand before it.

    Each line is visited once, however many documents there are, as these lines end at the previous document.
    """
    while (line := text.rfind("\n", 0, max(start - 1, 0)) + 1) < start and text[line] == "%":
        start = line
    return start


def _read_yaml(text: str, line: int, may_repeat_keys: bool) -> Iterator[Document]:
    """Yield the documents in a piece of the text, which starts at `line`: several if it has "..."."""
    try:
        for value, offset in _Builder(text, may_repeat_keys).documents():
            yield Document(line + offset, value)
    except _Malformed as error:
        yield Document(line + error.line, None, f"is not YAML for a manifest: {error.message}")
    except yaml.MarkedYAMLError as error:
        # A fault at the end of the text belongs to its last line, as the end may be on the line after.
        offset = min(error.problem_mark.line if error.problem_mark else 0, text.rstrip().count("\n"))
        yield Document(line + offset, None, f"is not YAML: {error.problem or error.context}")
    except yaml.reader.ReaderError as error:
        offset = text.count("\n", 0, error.position)
        yield Document(line + offset, None, f"is not YAML: {error.reason}")


_CORE = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset({f"{_CORE}int", f"{_CORE}float", f"{_CORE}bool", f"{_CORE}null"})
_TEXT_TAGS = frozenset({None, "!", f"{_CORE}str"})
_MAPPING_TAGS = frozenset({None, "!", f"{_CORE}map"})
_SEQUENCE_TAGS = frozenset({None, "!", f"{_CORE}seq"})
_BINARY_TAG = f"{_CORE}binary"


class _Anchored(NamedTuple):
    """The value of an anchor, and its characters, with its own aliases expanded."""

    value: object
    size: int


class _Builder:
    """Builds the values of YAML text from libyaml's events."""

    def __init__(self, text: str, may_repeat_keys: bool) -> None:
        self._may_repeat_keys = may_repeat_keys
        # Only the parser of the loader is used.  The pure parser works too, slowly, where PyYAML was built without C.
        self._next: Callable[[], Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)(text).get_event
        self._anchors: dict[str, _Anchored] = {}
        self._unfolded = 0

    def documents(self) -> Iterator[tuple[object, int]]:
        """Yield each document's value, and the line at which it starts, from 0.

        Raises:
            _Malformed: it is YAML, but has no place in a manifest. yaml.YAMLError: it is no YAML.
        """
        self._next()  # the start of the stream
        while isinstance(start := self._next(), DocumentStartEvent):
            self._anchors.clear()
            self._unfolded = 0
            yield self._value(self._next(), 0), _line(start)
            self._next()  # the end of the document

    def _value(self, event: Any, depth: int) -> object:
        kind = type(event)
        if kind is AliasEvent:
            return self._unfold(event)
        unfolded_before = self._unfolded
        value: object
        if kind is ScalarEvent:
            value, end = _scalar(event), event
        elif depth == MAX_DEPTH:
            raise _Malformed(f"nested more than {MAX_DEPTH} deep", _line(event))
        elif kind is MappingStartEvent:
            value, end = self._mapping(event, depth + 1)
        else:
            value, end = self._sequence(event, depth + 1)
        if event.anchor is not None:
            size = end.end_mark.index - event.start_mark.index + self._unfolded - unfolded_before
            self._anchors[event.anchor] = _Anchored(value, size)
        return value

    def _mapping(self, start: Any, depth: int) -> tuple[dict[str, object], Any]:
        """Return the entries until the mapping's end, and that event."""
        _check_tag(start, _MAPPING_TAGS)
        found: dict[str, object] = {}
        next_event = self._next
        while type(event := next_event()) is not MappingEndEvent:
            if type(event) is not ScalarEvent:
                raise _Malformed("a key is not a scalar", _line(event))
            key = event.value
            if key in found and not self._may_repeat_keys:
                raise _Malformed(f"the key {show(key)} is given twice", _line(event))
            inner = next_event()
            # Most values are scalars without an anchor, and need no call.
            plain = type(inner) is ScalarEvent and inner.anchor is None
            found[key] = _scalar(inner) if plain else self._value(inner, depth)
        if "<<" in found:
            _merge(found, _line(start))
        return found, event

    def _sequence(self, start: Any, depth: int) -> tuple[list[object], Any]:
        """Return the items until the sequence's end, and that event."""
        _check_tag(start, _SEQUENCE_TAGS)
        found: list[object] = []
        while type(event := self._next()) is not SequenceEndEvent:
            found.append(self._value(event, depth))
        return found, event

    def _unfold(self, event: Any) -> object:
        anchored = self._anchors.get(event.anchor)
        if anchored is None:
            raise _Malformed(f"the alias {show(event.anchor)} has no anchor before it", _line(event))
        self._unfolded += anchored.size
        if self._unfolded > MAX_UNFOLDED:
            raise _Malformed(f"aliases stand for more than {MAX_UNFOLDED} characters", _line(event))
        return anchored.value


def _line(event: Any) -> int:
    return int(event.start_mark.line)


def _check_tag(event: Any, allowed: frozenset[str | None]) -> None:
    if event.tag not in allowed:
        raise _Malformed(f"the tag {show(event.tag)} has no meaning here", _line(event))


def _merge(found: dict[str, object], line: int) -> None:
    """Add the entries of the mappings that "<<" names, without overriding existing keys (YAML 1.1 merge keys)."""
    named = found.pop("<<")
    for mapping in named if isinstance(named, list) else [named]:
        if not isinstance(mapping, dict):
            raise _Malformed("<< is followed by something other than a mapping", line)
        for key, value in mapping.items():
            found.setdefault(key, value)


def _scalar(event: Any) -> object:
    text = event.value
    if not event.implicit[0]:
        if event.tag in _TEXT_TAGS:
            return text
        if event.tag == _BINARY_TAG:
            return _from_base64(event)
        _check_tag(event, _PLAIN_TAGS)
    return _plain(text) if len(text) <= _LONGEST_NUMBER else text


def _from_base64(event: Any) -> str:
    """Return the text that a scalar of the tag !!binary stands for.  Python's YAML writes bytes so."""
    try:
        return base64.b64decode("".join(event.value.split()), validate=True).decode()
    except ValueError as error:
        raise _Malformed(f"!!binary is not base64 of a text: {error}", _line(event)) from error


_WORDS: dict[str, bool | None] = (
    dict.fromkeys(("", "~", "null", "Null", "NULL"))
    | dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True)
    | dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False)
)
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<decimal>0|[1-9][0-9]*)|0x(?P<hex>[0-9a-fA-F]+)|0o?(?P<octal>[0-7]+)|0b(?P<binary>[01]+)"
    r"|(?P<float>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)|\.(?P<special>inf|Inf|INF|nan|NaN|NAN))"
)
_BASES = {"decimal": 10, "hex": 16, "octal": 8, "binary": 2}
_LONGEST_NUMBER = 40
"""Characters: more than any number in the API has.  A longer text stays text."""


@functools.lru_cache(maxsize=16384)
def _plain(text: str) -> object:
    """Return the value of a scalar without quotes, by kubectl's rules (YAML 1.1, without times and base 60)."""
    if text in _WORDS:
        return _WORDS[text]
    found = _NUMBER.fullmatch(text) if text[0] in "+-.0123456789" else None
    if found is None:
        return text
    form = found.lastgroup or ""
    digits = found[form]
    return int(found["sign"] + digits, _BASES[form]) if form in _BASES else float(found["sign"] + digits)
