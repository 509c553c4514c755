"""YAML and JSON text to documents: kubectl's reading of YAML, its traps refused, and lines that can be found again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nftproxy.sources.documents import Document, json_documents, yaml_documents


def read(text: str) -> list[tuple[int, object]]:
    """The documents of YAML text, all of which must be good, each with its line."""
    documents = list(yaml_documents(text))
    assert not any(document.fault for document in documents), documents
    return [(document.line, document.value) for document in documents]


def value(text: str) -> object:
    """The value of a scalar."""
    ((_, found),) = read(f"a: {text}\n")
    assert isinstance(found, dict)
    return found["a"]


def faults(text: str) -> list[tuple[int, str]]:
    """The faults of YAML text, by line."""
    return [(document.line, document.fault) for document in yaml_documents(text) if document.fault]


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("", []),
        ("# nothing\n", []),
        ("a: 1\n", [(1, {"a": 1})]),
        ("---\na: 1\n", [(1, {"a": 1})]),
        ("# first\n---\na: 1\n---\nb: 2\n", [(2, {"a": 1}), (4, {"b": 2})]),
        ("a: 1\n---\n---\nb: 2\n", [(1, {"a": 1}), (2, None), (3, {"b": 2})]),
        ("a: 1\n...\n---\nb: 2\n", [(1, {"a": 1}), (3, {"b": 2})]),
        ("%YAML 1.1\n---\na: 1\n...\n%YAML 1.1\n---\nb: 2\n", [(1, {"a": 1}), (5, {"b": 2})]),
        ("a: 1\r\n---\r\nb:\r\n- 2\r\n", [(1, {"a": 1}), (2, {"b": [2]})]),
        ("--- {a: 1}\n--- text\n", [(1, {"a": 1}), (2, "text")]),
        ("a: |\n  ---\n  b\n", [(1, {"a": "---\nb\n"})]),
        ("a: ---b\n", [(1, {"a": "---b"})]),
        ("---a: 1\n", [(1, {"---a": 1})]),
        ("- {a: [1, {b: 2}]}\n- []\n- {}\n", [(1, [{"a": [1, {"b": 2}]}, [], {}])]),
    ],
)
def test_documents(text: str, documents: list[tuple[int, object]]) -> None:
    """Text is cut at "---", and each document knows the line at which it starts."""
    assert read(text) == documents


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((word, True) for word in ("true", "True", "TRUE", "yes", "on", "On")),
        *((word, False) for word in ("false", "no", "No", "NO", "off")),
        *((word, None) for word in ("", "~", "null", "Null", "NULL")),
        *(
            (word, word)
            for word in ("y", "n", "tRue", "10.0.0.1", "1:30", "0x", "08s", "1_000", "+", ".", "a b", "::1")
        ),
        ("0", 0),
        ("80", 80),
        ("-1", -1),
        ("+1", 1),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 15),
        ("0b101", 5),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-1.", -1.0),
        ("1e3", 1000.0),
        ("08", 8.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("1" * 40, int("1" * 40)),
        ("1" * 41, "1" * 41),
        ("2024-05-01T10:20:30Z", "2024-05-01T10:20:30Z"),
        ("2024-05-01", "2024-05-01"),
        ("'80'", "80"),
        ('"no"', "no"),
        ('"\\0\\n"', "\0\n"),
        ("|-\n  80", "80"),
        ("!!str 80", "80"),
        ("!!int '80'", 80),
        ("!!bool 'no'", False),
    ],
)
def test_scalars(text: str, expected: object) -> None:
    """Scalars have kubectl's values.  Times stay text."""
    found = value(text)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x 80\nc: [*x, *x]\n", {"a": 80, "c": [80, 80]}),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\n", {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}),
        ("a: &x {b: 1}\nd: {c: 3, <<: [*x, {b: 2, e: 4}]}\n", {"a": {"b": 1}, "d": {"c": 3, "b": 1, "e": 4}}),
    ],
)
def test_aliases(text: str, expected: object) -> None:
    """Aliases and merge keys stand for their anchors.  A mapping's own entries come first."""
    assert read(text) == [(1, expected)]


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(8)
)


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "is not YAML for a manifest: the key 'a' is given twice"),
        ("a:\n  b: 1\n  ? [c]\n  : 2\n", 3, "is not YAML for a manifest: a key is not a scalar"),
        ("a: !foo x\n", 1, "is not YAML for a manifest: the tag '!foo' has no meaning here"),
        ("a: !!set {b}\n", 1, "is not YAML for a manifest: the tag 'tag:yaml.org,2002:set' has no meaning here"),
        ("a: !!binary aG\n", 1, "is not YAML for a manifest: !!binary is not base64 of a text: Incorrect padding"),
        (
            "!!python/object:os.system {}\n",
            1,
            "is not YAML for a manifest: the tag 'tag:yaml.org,2002:python/object:os.system' has no meaning here",
        ),
        ("- !!set [a]\n", 1, "is not YAML for a manifest: the tag 'tag:yaml.org,2002:set' has no meaning here"),
        ("a: *b\n", 1, "is not YAML for a manifest: the alias 'b' has no anchor before it"),
        ("a: &a [*a]\n", 1, "is not YAML for a manifest: the alias 'a' has no anchor before it"),
        ("a: &a 1\n---\nb: *a\n", 3, "is not YAML for a manifest: the alias 'a' has no anchor before it"),
        ("a:\n  <<: 5\n", 2, "is not YAML for a manifest: << is followed by something other than a mapping"),
        (BOMB, 6, "is not YAML for a manifest: aliases stand for more than 3000000 characters"),
        ("[" * 500, 1, "is not YAML for a manifest: nested more than 100 deep"),
        ("- " * 5_000 + "a", 1, "is not YAML for a manifest: nested more than 100 deep"),
        ("a: b\n  c: d\n", 2, "is not YAML: mapping values are not allowed in this context"),
        ("a:\n\tb: c\n", 2, "is not YAML: found character that cannot start any token"),
        ("a: 'b\n", 1, "is not YAML: found unexpected end of stream"),
        ("a: 1\nb: x\x07y\n", 2, "is not YAML: control characters are not allowed"),
        ("a: 'b\n---\nc'\n", 1, "is not YAML: found unexpected end of stream"),
    ],
)
def test_faults(text: str, line: int, fault: str) -> None:
    """Text that is no YAML, or has no place in a manifest, is a fault at its line."""
    assert (line, fault) in faults(text)


def test_a_fault_costs_its_document_alone() -> None:
    """The documents before and after a document that doesn't parse are read."""
    documents = list(yaml_documents("a: 1\n---\nb: [\n---\nc: 3\n"))
    assert [(document.line, document.value) for document in documents] == [(1, {"a": 1}), (3, None), (4, {"c": 3})]


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("", []),
        ('{"a": 1}', [Document(1, {"a": 1})]),
        ('\n{"a": 1}\n\n[2]3', [Document(2, {"a": 1}), Document(4, [2]), Document(4, 3)]),
        (
            '{"a": 1}\n{"a"\n: nul}',
            [Document(1, {"a": 1}), Document(3, None, "is not JSON: Expecting value (column 3)")],
        ),
        (
            "[" * 100_000,
            [Document(1, None, "can't be read as JSON: a number is too long, or values are nested too deeply")],
        ),
        (
            "\n1" + "0" * 5000,
            [Document(2, None, "can't be read as JSON: a number is too long, or values are nested too deeply")],
        ),
    ],
)
def test_json(text: str, documents: list[Document]) -> None:
    """JSON texts may follow each other.  The first that doesn't parse ends the file."""
    assert list(json_documents(text)) == documents


plain_text = st.text(st.characters(exclude_categories=["Cs", "Cc", "Co", "Cn"]), max_size=10)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | plain_text
    | st.sampled_from(["no", "80", "1e3", "~", "2024-05-01", "<<", "a: b", "- x", "*a", "&a", "!b", "---", "10.0.0.1"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(plain_text.filter(lambda key: key != "<<"), inner, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=100)
@given(st.lists(values, max_size=3))
def test_what_was_dumped_is_read_again(documents: list[object]) -> None:
    """Values written as YAML, block or flow, quoted throughout or as JSON, are read as they were."""
    for options in ({"default_style": '"'}, {"default_style": '"', "default_flow_style": True, "width": 20}):
        text: Any = yaml.safe_dump_all(documents, explicit_start=True, allow_unicode=True, **options)
        assert [document.value for document in yaml_documents(text)] == documents
    text = "".join(f"--- {json.dumps(document, ensure_ascii=False)}\n" for document in documents)
    expected = [json.loads(json.dumps(document)) for document in documents]
    if "Infinity" not in text:
        assert [document.value for document in yaml_documents(text)] == expected
    assert [document.value for document in json_documents(text.replace("--- ", ""))] == expected


yaml_like = st.lists(
    st.sampled_from(
        [*"a1-:?,[]{}#&*!|>'\"%@` \n\t\r\0\ufeff\u2028é", "---", "...", "<<", "- ", ": ", "\n  ", "&a ", "*a", "!!str "]
    ),
    max_size=40,
).map("".join)


@settings(max_examples=200)
@given(yaml_like | st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_at_all(text: str) -> None:
    """Reading never raises for any text, and yields only JSON's types."""
    for document in [*yaml_documents(text), *json_documents(text)]:
        assert document.line >= 1
        assert document.fault.isprintable()
        assert_json(document.value)


def assert_json(found: Any) -> None:
    """Nothing but JSON's types, with text for keys."""
    match found:
        case dict():
            assert all(isinstance(key, str) for key in found)
            for inner in found.values():
                assert_json(inner)
        case list():
            for inner in found:
                assert_json(inner)
        case _:
            assert isinstance(found, str | int | float | None)


# Growth


def cpu(text: str, split: Callable[[str], Iterable[Document]]) -> float:
    """Processor seconds of this thread to read a text: the fewest of several, which other processes disturb least."""

    def once() -> float:
        begin = time.thread_time()
        for _ in split(text):
            pass
        return time.thread_time() - begin

    return min(once() for _ in range(5))


@pytest.mark.parametrize(
    ("split", "part", "count"),
    [
        (yaml_documents, "%\n", 2_000),
        (yaml_documents, "%\n---\n", 1_000),
        (yaml_documents, "% ---\n%", 1_500),
        (yaml_documents, "---\n", 1_000),
        (yaml_documents, "a\n...\n", 1_000),
        (yaml_documents, "\n---x", 5_000),
        (json_documents, "{}\n", 8_000),
        (json_documents, "7 ", 8_000),
        (json_documents, "\n\n\n{}", 8_000),
    ],
)
def test_four_times_the_text_takes_four_times_as_long(
    split: Callable[[str], Iterable[Document]], part: str, count: int
) -> None:
    """The work grows with the text and not with its square, however many documents, lines and directives there are."""
    assert cpu(part * count * 4, split) <= 9 * cpu(part * count, split)
