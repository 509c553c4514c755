"""The files that hold the rules of the examples: a common `skeleton.nft`, and an `expected.nft` for each example.

`skeleton.nft` is the output of `render` for a node without Services.  An `expected.nft` has the rules that an example
adds.  nft can load it after the skeleton: declarations that the skeleton lacks, chains that differ from the skeleton's,
and a line for each element.  `expected` joins both files, byte for byte as `render` prints the example.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.examples import CHECKOUT, EXAMPLES

EXAMPLES_DIRECTORY = CHECKOUT / "examples"
SKELETON = EXAMPLES_DIRECTORY / "skeleton.nft"
EXPECTED = {(name, "hash"): "expected.nft" for name in EXAMPLES} | {("session-affinity", "map"): "expected-map.nft"}
"""The file with the rules that an example adds, by example and by the way to remember IPv6 clients."""

TITLE = "# what this example adds to ../skeleton.nft"

_TABLE = re.compile(r"^table (\S+ \S+) \{\n(.*?)^\}\n", re.MULTILINE | re.DOTALL)
_DECLARATION = re.compile(
    r"(?P<comments>(?:  #.*\n)*)  (?P<identity>(?:set|map|chain) \S+) \{\n"
    r"(?P<body>(?:    (?!elements = \{).*\n)*)(?:    elements = \{\n(?P<elements>(?:      .*\n)*)    \}\n)?  \}\n"
)
_ELEMENT = re.compile(r"      (.*),(|  # .*)\n")
_ADDED_ELEMENT = re.compile(r"^add element (\S+ \S+) (\S+) \{ (.*) \}(|  # .*)\n", re.MULTILINE)
_SHORT = re.compile(r"^(  (?:set|map|chain) \S+ \{) (.*); \}\n", re.MULTILINE)
_LONG = re.compile(r"^(  (?:set|map|chain) \S+ \{)\n    (.*)\n  \}\n", re.MULTILINE)

Table = dict[str, tuple[str, str]]
"""The declarations of a table in their order: the comments above each and its lines, by "map services"."""


class Rules(NamedTuple):
    """The rules of a node: the comments at the top, the tables, and the elements of each set and map by its name."""

    notes: list[str]
    tables: dict[str, Table]
    elements: dict[tuple[str, str], list[tuple[str, str]]]
    """Each element with the comment behind it or "", by the table and the name of its set or map."""
    fast_path: str = ""
    """The table of the fast path, which no skeleton has."""


def expected(example: str, affinity: str = "hash") -> str:
    """All rules of an example, as `render` prints them."""
    return write(_expected(example, affinity))


def _expected(example: str, affinity: str) -> Rules:
    file = EXAMPLES_DIRECTORY / example / EXPECTED[example, affinity]
    return completed(_base(example, affinity), read(file.read_text()))


def _base(example: str, affinity: str) -> Rules:
    """The rules to which an example's file adds.  IPv4 rules don't depend on the way to remember IPv6 clients."""
    skeleton = read(SKELETON.read_text())
    if affinity == "hash":
        return skeleton
    by_hash, table = _expected(example, "hash"), "ip nftproxy"
    elements = {place: found for place, found in by_hash.elements.items() if place[0] == table}
    return Rules([], skeleton.tables | {table: by_hash.tables[table]}, skeleton.elements | elements)


def update(example: str, affinity: str, text: str) -> None:
    """Write what an example adds, given the output of `render`."""
    base, rules = _base(example, affinity), read(text)
    title = TITLE + (" and to the IPv4 table of expected.nft" if affinity == "map" else "")
    added = "".join((f"{title}\n", *(f"{note}\n" for note in rules.notes), *_added(base, rules), rules.fast_path))
    (EXAMPLES_DIRECTORY / example / EXPECTED[example, affinity]).write_text(added)


def read(text: str) -> Rules:
    """Parse a file that `write` or `update` has written."""
    text, heading, rest = text.partition("\ntable inet nftproxy-fast-path ")
    rules = Rules(
        [line for line in text.splitlines() if line.startswith("#") and not line.startswith(TITLE)],
        {},
        {},
        heading + rest,
    )
    for table, content in _TABLE.findall(text):
        rules.tables[table] = {}
        for found in _DECLARATION.finditer(_SHORT.sub(r"\1\n    \2\n  }\n", content)):
            rules.tables[table][found["identity"]] = found["comments"], found["body"]
            if found["elements"]:
                rules.elements[table, found["identity"].split()[1]] = _ELEMENT.findall(found["elements"])
    for table, name, *element in _ADDED_ELEMENT.findall(text):
        rules.elements.setdefault((table, name), []).append((element[0], element[1]))
    return rules


def write(rules: Rules) -> str:
    """Write the output of `render`."""
    return "".join((*(f"{note}\n" for note in rules.notes), *_tables(rules), rules.fast_path))


def _tables(rules: Rules) -> Iterator[str]:
    for table, declared in rules.tables.items():
        yield f'\ntable {table} {{\n  comment "nftproxy"\n'
        for identity, (comments, body) in declared.items():
            kind, _, name = identity.partition(" ")
            found = rules.elements.get((table, name), []) if kind != "chain" else []
            elements = "".join(f"      {text},{owner}\n" for text, owner in found)
            body += f"    elements = {{\n{elements}    }}\n" if elements else ""
            yield f"\n{comments}  {identity} {{\n{body}  }}\n"
        yield "}\n"


def completed(base: Rules, added: Rules) -> Rules:
    """All rules of an example: the skeleton's rules, and those that the example adds."""
    tables = {table: _merged(declared, added.tables.get(table, {})) for table, declared in base.tables.items()}
    places = base.elements | added.elements
    elements = {place: added.elements.get(place, []) + base.elements.get(place, []) for place in places}
    return Rules(added.notes, tables, elements, added.fast_path)


def _merged(base: Table, added: Table) -> Table:
    names = list(added)
    at = min((number for number, name in enumerate(names) if name in base), default=len(names))
    sets = [name for name in base if not name.startswith("chain ")]
    return {name: (base | added)[name] for name in (*sets, *names[:at], *base, *names[at:])}


def _added(base: Rules, rules: Rules) -> Iterator[str]:
    for table, declared in rules.tables.items():
        known = base.tables[table]
        changed = {identity: text for identity, text in declared.items() if text != known.get(identity)}
        yield "\n"
        yield from (f"flush chain {table} {identity.split()[1]}\n" for identity in changed if identity in known)
        blocks = "".join(f"{comments}  {identity} {{\n{body}  }}\n" for identity, (comments, body) in changed.items())
        blocks = _LONG.sub(r"\1 \2; }\n", blocks)
        yield f"table {table} {{\n{blocks}}}\n" if blocks else ""
        for (_, name), found in (each for each in rules.elements.items() if each[0][0] == table):
            for text, owner in found[: len(found) - len(base.elements.get((table, name), []))]:
                yield f"add element {table} {name} {{ {text} }}{owner}\n"
