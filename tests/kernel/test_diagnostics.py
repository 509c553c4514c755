"""Finding the statement that libnftables complains of, from complaints as versions 1.0.6 and 1.1.3 word them."""

from __future__ import annotations

import pytest

from nftproxy.kernel.diagnostics import LIMIT, explain

PATH = "/proc/self/fd/7"


def complaint(line: int, first: int, last: int, words: str = "Could not process rule: File exists") -> str:
    """A complaint, without the echo of the line."""
    return f"{PATH}:{line}:{first}-{last}: Error: {words}\n...\n   ^^^\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("netlink: Error: cache initialization failed: Operation not permitted\n", None),
        ("internal:0:0-0: Error: Could not open file\n", None),
        ("/etc/other:1:1-2: Error: syntax error\n", None),
        ("", "libnftables failed without a message"),
    ],
)
def test_a_complaint_without_a_place_in_the_text(error: str, message: str | None) -> None:
    """An error that names no place in the text is reported as it is, without a statement."""
    assert explain("add table ip t\n", PATH, error) == (message or error.strip(), "")


def test_the_guess_is_left_out() -> None:
    """The nearest name that libnftables knows is often of another table, and would mislead."""
    words = "No such file or directory; did you mean map 'eps' in table ip6 'nftproxy'?"
    message, _ = explain("add element ip nftproxy x { 1.2.3.4 }\n", PATH, complaint(1, 25, 25, words))
    assert message == "No such file or directory"


@pytest.mark.parametrize(("key", "element"), [("a", "a : b"), ("c . d", "c . d : e"), ("f", "f")])
def test_an_element_is_cut_out(key: str, element: str) -> None:
    """From a command with many elements only the element at the place is quoted, with its value."""
    text = "add element t set { a : b, c . d : e, f }\n"
    first = text.index(f"{key} ") + 1
    assert explain(text, PATH, complaint(1, first, first + len(key) - 1))[1] == f"add element t set {{ {element} }}"


def test_columns_are_bytes() -> None:
    """Letters of several bytes before the place do not shift it."""
    text = 'add element t s { "ä", "öü", c }\n'
    first = text.encode().index(b"c }") + 1
    assert explain(text, PATH, complaint(1, first, first))[1] == "add element t s { c }"


def test_a_line_is_shown_in_its_blocks() -> None:
    """A rule is quoted with the chain and the table that it stands in, and not with their other rules."""
    text = "add table ip t\ntable ip t {\n  chain a {\n    accept\n  }\n  chain b {\n    accept\n    drop\n  }\n}\n"
    assert explain(text, PATH, complaint(8, 5, 8))[1] == "table ip t { chain b { drop"


def test_a_long_line_is_shown_around_the_place() -> None:
    """If a long line isn't a list of elements, only the part at the place is quoted."""
    text = f"add rule ip t c {'ip daddr 192.0.2.1 ' * 100}jump nowhere\n"
    first = text.index("nowhere") + 1
    _, statement = explain(text, PATH, complaint(1, first, first + 6))
    assert statement.endswith("jump nowhere")
    assert len(statement) <= LIMIT


def test_a_place_at_the_end_of_the_text() -> None:
    """A complaint about the end of the file has no statement to quote."""
    assert explain("table ip t {\n", PATH, complaint(2, 1, 1, "syntax error, unexpected end of file"))[1] == ""
