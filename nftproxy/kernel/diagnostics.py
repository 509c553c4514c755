"""Find the statement that libnftables complains about.

libnftables says `FILE:LINE:COLUMN-COLUMN: Error: WORDS`, then the line and a row of carets.  A line of ours can have
all endpoints of a cluster, so that may be megabytes.  The place is enough to cut the statement at fault out of our
text.
"""

from __future__ import annotations

import errno
import os
import re

from nftproxy.kernel.nfnetlink.modules import advice_on

LIMIT = 300  # characters of a statement, or of a message: a few lines of a log
LOCATION = r":(\d+):(\d+)-(\d+): Error: ([^\n]*)"
_LACKING = (os.strerror(errno.ENOENT), os.strerror(errno.EOPNOTSUPP))
"""The kernel's words for a kind of rule or chain that it lacks."""
GUESS = "; did you mean "  # libnftables' nearest name, often of another family's table
ELEMENTS = re.compile(r"\s*(?:add|create|delete) element [^{]*\{")


def explain(text: str, path: str, error: str) -> tuple[str, str]:
    """Return the first complaint of libnftables about `text`, which it read from `path`, and the statement ("" if
    unsaid).  If the kernel may lack modules for the statement, the complaint says how to load them.
    """
    complaints = list(re.finditer("^" + re.escape(path) + LOCATION, error, re.MULTILINE))
    if not complaints:
        return _bounded(error.partition("\n")[0].strip() or "libnftables failed without a message"), ""
    line, first, last, words = complaints[0].groups()
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    lines, number = text.split("\n"), int(line) - 1
    if words.partition(GUESS)[0].endswith(_LACKING):
        more += advice_on(" ".join([*_blocks(lines, number), lines[number]]))
    statement = _statement(lines, number, int(first) - 1, int(last))
    return _bounded(words.partition(GUESS)[0]) + more, statement


def _statement(lines: list[str], number: int, first: int, last: int) -> str:
    """The statement at bytes `first` to `last` of one line, with the blocks that it stands in."""
    line = lines[number].encode()
    if ELEMENTS.match(lines[number]) and first > line.index(b"{"):
        return _bounded(_element(line, first, last))
    start = max(0, first - LIMIT // 2) if len(line) > LIMIT else 0
    return _bounded(" ".join([*_blocks(lines, number), line[start:].decode(errors="replace").strip()]))


def _element(line: bytes, first: int, last: int) -> str:
    """An `add element` command with only that element which spans these bytes."""
    start = max(line.rfind(b",", 0, first), line.index(b"{")) + 1
    ends = [end for end in (line.find(b",", last), line.rfind(b"}")) if end >= last]
    command, element = line[: line.index(b"{")], line[start : min(ends, default=len(line))]
    return f"{command.decode(errors='replace').strip()} {{ {element.decode(errors='replace').strip()} }}"


def _blocks(lines: list[str], number: int) -> list[str]:
    """The lines that open the blocks around a line, outermost first, recognised by their indentation."""
    found: list[str] = []
    depth = _depth(lines[number])
    for line in reversed(lines[:number]):
        if _depth(line) < depth and line.rstrip().endswith("{"):
            found.append(line.strip())
            depth = _depth(line)
            if depth == 0:
                break
    return found[::-1]


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _bounded(text: str) -> str:
    return text if len(text) <= LIMIT else text[: LIMIT - 3] + "..."
