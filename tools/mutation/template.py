"""Faults of nft templates, made in their lines: a rule, a declaration, an element, or a loop around these.

The faults are based on the words of this project's templates (`WORDS`), not on nft's grammar.  If the kernel refuses a
mutant's rules, the first test that loads them kills it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tools.mutation.mutant import RULE_COMMENT, Fault

_TERM = (
    r"(?:(?:ct original )?(?:\{\{ ip \}\}|ip6?) [sd]addr|ct original proto-dst|meta l4proto|th dport"
    r"|\{\{ protocol \}\} dport|\{\{ where \}\}|\{\{ asked \}\})"
)
_KEY = rf"{_TERM}(?: \. {_TERM})*"

MATCHES = (
    r"ct state new ",
    r"ct status dnat ",
    r"ct status & dnat == 0 ",
    r"ct direction original ",
    r"fib saddr type local ",
    r"meta mark & \{\{ mark \}\} != 0 ",
    r"meta l4proto (?:tcp|\{\{ protocol \}\}) ",
    r"\{\{ (?:source|match) \}\} ",
    rf"{_KEY} (?:!= )?@[\w-]+ ",
)
"""Conditions of a rule.  A fault leaves a condition out, so that the rule matches more packets."""

ACTIONS = (
    r"meta mark set meta mark [|&] \{\{ \w+ \}\}(?: |$)",
    r" with tcp reset",
    r" timeout \{\{ timeout \}\}s(?= :)",
    r",timeout$",
    r"dynamic,",
)
"""Additional parts of a rule or declaration.  A fault leaves such a part out."""

WORDS: Sequence[tuple[str, str]] = (
    (r"\bjump\b", "goto"),
    (r"\bgoto\b", "jump"),
    (r"^drop$|(?<= )drop$", "accept"),
    (r"^drop$|(?<= )drop$", "return"),
    (r"^reject$", "drop"),
    (r"\bsaddr\b", "daddr"),
    (r"\bdaddr\b", "saddr"),
    (r"\bdport\b", "sport"),
    (r"\bproto-dst\b", "proto-src"),
    (r"\bct original ", ""),
    (r"\| (?=\{\{ mark)", "& "),
    (r"& (?=\{\{ unmark)", "| "),
    (r"\{\{ mark \}\}", "{{ unmark }}"),
    (r"\{\{ unmark \}\}", "{{ mark }}"),
    (r"== 0", "!= 0"),
    (r"!= 0", "== 0"),
    (r"\bstate new\b", "state != new"),
    (r"\bstate new\b", "state established"),
    (r"status dnat", "status & dnat == 0"),
    (r"type local\b", "type != local"),
    (r"!= @", "@"),
    (r"(?<!vmap )(?<!map )(?<!!= )(?<!update )(?<!delete )@", "!= @"),
    (r"\{\{ draw \}\}", "numgen random mod 1"),
    (r"\{\{ where \}\}", "{{ asked }}"),
    (r"\{\{ asked \}\}", "{{ where }}"),
    (r"mod 1\b", "mod 2"),
    (r"mod 1\b", "{{ draw }}"),
    (r"\bsize \d+", "size 1"),
    (r"\btimeout \{\{ timeout \}\}s", "timeout 1s"),
    (r"\bupdate\b", "add"),
    (r"\bdelete\b", "update"),
    (r"(?<=hook )prerouting\b", "output"),
    (r"(?<=hook )output\b", "prerouting"),
    (r"(?<=hook )input\b", "forward"),
    (r"(?<=hook )forward\b", "input"),
    (r"(?<=hook )postrouting\b", "output"),
    (r"\{\{ \w+\.prefix \}\}", ""),
    (r"\{\{ slot \}\}", "0"),
    (r"(?<=\{ )\{\{ address \}\}(?= \. \{\{ address)", "{{ port }}"),
)
"""Patterns, and the replacement of each occurrence in a line."""

_HEAD = re.compile(r"(?P<kind>set|map|chain) (?P<name>\S.*?) \{$")
_LOOP = re.compile(r"(?P<head>\{% for .* in )(?P<what>.*?)(?P<tail> %\})")
_CONDITION = re.compile(r"(?P<head>\{% (?:el)?if )(?P<what>.*?)(?P<tail> %\})")
_SET = re.compile(r"(?<=@)(?P<name>[a-z][\w-]*)(?![\w-]|\{)")
_CONTAINER = re.compile(r"(?<=add element \{\{ table \}\} )(?:\{\{ \S+ \}\})?(?P<name>[a-z][\w-]*)(?= \{)")
_TARGET = re.compile(r"(?<=jump |goto )(?P<name>[a-z][\w-]*)(?![\w-]|\{)")
_PRIORITY = re.compile(r"(?<=priority )-?\d+$")


class Names:
    """The names that a fault may swap: sets and maps of the same type, chains, priorities."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        types: dict[str, tuple[str, str]] = {}
        chains: list[str] = []
        priorities: set[int] = set()
        for text in templates.values():
            kind = name = ""
            for line in text.splitlines():
                if head := _HEAD.search(line):
                    kind, name = head["kind"], head["name"]
                    chains += [name] if kind == "chain" and "{{" not in name else []
                elif line.strip().startswith("typeof"):
                    types[name] = kind, line.strip()
                elif line.strip().startswith("type "):
                    chains.remove(name)  # a base chain: no rule jumps to it
                    priorities |= {int(each.group()) for each in _PRIORITY.finditer(line)}
        self._types, self._chains = types, chains
        self.priorities = sorted(priorities)

    def like_set(self, name: str) -> list[str]:
        """Return the other sets, or maps, of the same type."""
        own = self._types.get(name)
        return [other for other, its in self._types.items() if own and its == own and other != name]

    def like_chain(self, name: str) -> list[str]:
        """Return the two chains after this chain."""
        if name not in self._chains:
            return []
        place = self._chains.index(name)
        return [each for each in (self._chains * 2)[place + 1 : place + 3] if each != name]


def faults(text: str, names: Names) -> Iterator[Fault]:
    """Yield every fault of a template.  Its text is ASCII, so that character offsets are also byte offsets."""
    where, start, is_comment = "", 0, False
    previous: tuple[int, str] | None = None  # the rule or element just above
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.strip()
        begin = start + len(whole) - len(whole.lstrip())
        start += len(whole) + 1
        is_comment = is_comment or line.startswith("{#")
        if is_comment or not line or line.startswith(("#", "table {{")) or line == "}":
            is_comment = is_comment and "#}" not in line
            where, previous = ("" if whole == "}" else where), None
        elif head := _HEAD.fullmatch(line):
            where, previous = f"{head['kind']} {head['name']}", None
        elif line.startswith("{%"):
            previous = None
            yield from _placed(_control(line), begin, where, number)
        else:
            rule = RULE_COMMENT.sub("", line)
            dropped = Fault(0, len(line), "", "dropped", "", (0, 0))
            yield from _placed((dropped, *_line(rule), *_names(rule, names)), begin, where, number)
            if previous and where.startswith("chain") and not previous[1].startswith("type "):
                above, rule = previous
                new = f"{line}\n    {rule}"
                yield Fault(above, begin + len(line), new, "swapped with the next", where, (number - 1, number))
            previous = begin, line


def _placed(found: Iterable[Fault], begin: int, where: str, number: int) -> Iterator[Fault]:
    """Convert faults of a line into faults of the text in which the line begins at offset `begin`."""
    for fault in found:
        yield fault._replace(start=begin + fault.start, end=begin + fault.end, where=where, lines=(number, number))


def _control(line: str) -> Iterator[Fault]:
    """Yield a loop over nothing or over the first item only, or a condition that always or never holds."""
    if loop := _LOOP.fullmatch(line):
        for new, change in (("()", "no loop"), (f"{loop['what']}[:1]", "first only")):
            yield Fault(*loop.span("what"), new, change, "", (0, 0))
    elif condition := _CONDITION.fullmatch(line):
        for new in ("true", "false"):
            yield Fault(*condition.span("what"), new, f"condition {new}", "", (0, 0))


def _line(line: str) -> Iterator[Fault]:
    for pattern in (*MATCHES, *ACTIONS):
        for found in re.finditer(pattern, line):
            rest = line[: found.start()] + line[found.end() :]
            if rest.strip() and not line[: found.start()].endswith(". "):
                yield Fault(*found.span(), "", f"{found.group().strip()} left out", "", (0, 0))
    if line.startswith("typeof "):
        return  # swaps in a declaration of a type change nothing: similar expressions have the same type
    for pattern, new in WORDS:
        for found in re.finditer(pattern, line):
            yield Fault(*found.span(), new, f"{found.group().strip()} -> {new.strip() or 'nothing'}", "", (0, 0))


def _names(line: str, names: Names) -> Iterator[Fault]:
    for pattern, others in ((_SET, names.like_set), (_CONTAINER, names.like_set), (_TARGET, names.like_chain)):
        for found in pattern.finditer(line):
            for other in others(found["name"]):
                yield Fault(*found.span("name"), other, f"{found['name']} -> {other}", "", (0, 0))
    for found in _PRIORITY.finditer(line):
        own = int(found.group())
        for number in (each for each in names.priorities if each != own):
            yield Fault(*found.span(), str(number), f"priority {own} -> {number}", "", (0, 0))
