"""Render facts with templates, and split the rendered text into statements.

Four templates make the data plane:

* `table.nft.j2`: the skeleton of a table
* `endpoints.nft.j2`: a list of endpoints
* `draw.nft.j2`: the draw of a slot among N
* `service.nft.j2`: the elements of a Service port

Extensions have templates of their own (templates/extensions/): `table.nft.j2` for their share of the skeleton, and
others for the elements of a Service port.

They render plain nft in two forms only: a `table` block of declarations, and `add element` lines with one element each.
`read_statements` splits that text line by line.  It knows these two forms and not the nft language, which only
libnftables judges.

Nothing is read from disk here: a `Renderer` receives the templates' texts.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jinja2
import msgspec

from nftproxy.model.addresses import TABLE
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem, TemplateError
from nftproxy.policy.facts import INSERTION_POINTS, DrawFacts, Front, ListFacts, Part, PortFacts, Row, Slots, TableFacts
from nftproxy.rules.ruleset import Block, Declaration, Element, Line, NftKind

TABLE_TEMPLATE = "table.nft.j2"
ENDPOINTS_TEMPLATE = "endpoints.nft.j2"
DRAW_TEMPLATE = "draw.nft.j2"
SERVICE_TEMPLATE = "service.nft.j2"
TEMPLATE_NAMES = (TABLE_TEMPLATE, ENDPOINTS_TEMPLATE, DRAW_TEMPLATE, SERVICE_TEMPLATE)
_NOTHING = dict.fromkeys(INSERTION_POINTS, "")

TABLES = 4
"""Skeletons of a table that a renderer remembers: a table's shape and its first load take the same one."""

CACHED = 4096
"""Most entries in each cache of rendered lists, draws and screens.  The least recently used entry is evicted.

A cluster needs some dozens, but every new affinity timeout adds more.
"""

LONG = 100
"""Lists with this many endpoints or more have their rendered rows cached.

An endpoint that is added or removed leaves most rows as they are (policy/choosing/slots.py).
"""
LONG_LISTS = 16
"""Most lists with cached rows.  The least recently rendered list is evicted.  1,000 endpoints take about 0.2 MB."""

_LISTS = ("endpoints", "sticky")
"""The fields of `PortFacts` that have a row for each endpoint."""
DECLARATIONS = "declarations"
"""The block of an extension's template for a skeleton that declares its sets, maps and chains."""
_LEADING = ("goto", "jump")
_KINDS = {kind.value: kind for kind in NftKind}


class _TemplateEnvironment(jinja2.Environment):
    def make_globals(self, d: Any) -> dict[str, Any]:
        """A dict of its own for each template.  Jinja's `ChainMap` is copied by Python code at each rendering."""
        return {**self.globals, **(d or {})}


class WholeTable(NamedTuple):
    """A table that an extension loads by itself: nft's text, and the table's comment, which differs for each text."""

    text: str
    comment: str


class Renderer:
    """Renders facts to blocks with a set of templates.

    Args:
        templates: the texts of the templates, by name.
        code: their byte code, as far as it is known.

    Raises:
        TemplateError: the constructor raises it if a template is missing or doesn't parse, every other method if a
            template fails.
    """

    def __init__(self, templates: Mapping[str, str], code: jinja2.BytecodeCache | None = None) -> None:
        environment = _TemplateEnvironment(
            loader=jinja2.DictLoader(dict(templates)),
            bytecode_cache=code,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        self._templates = {
            name: _compiled(environment, name) for name in {**dict.fromkeys(TEMPLATE_NAMES), **templates}
        }
        self._table = functools.lru_cache(maxsize=TABLES)(self._render_table)
        self._list = functools.lru_cache(maxsize=CACHED)(self._render_list)
        self._draw = functools.lru_cache(maxsize=CACHED)(self._render_draw)
        self._maps: dict[str, Declaration] = {}
        self._rows: dict[tuple[str, str, str, Front], tuple[tuple[Row, ...], tuple[Line, ...]]] = {}
        self._part = functools.lru_cache(maxsize=CACHED)(self._render_part)
        self._shared = functools.lru_cache(maxsize=CACHED)(self._gather_shared)

    def require(self, names: Iterable[str]) -> None:
        """Check that the templates of extensions are there, too.

        Raises:
            TemplateError: a template is missing.
        """
        for name in names:
            if name not in self._templates:
                raise TemplateError(_no_template(name))

    def table(self, facts: TableFacts) -> Block:
        """The skeleton of a family's table, with the shares of the extensions."""
        return self._table(facts)

    def _render_table(self, facts: TableFacts) -> Block:
        known = msgspec.structs.asdict(facts)
        shares = [(part.template, self._blocks_of(part, known)) for part in facts.parts]
        inserted = {name: "".join(share.get(name, "") for _, share in shares) for name in INSERTION_POINTS}
        own = self._block(TABLE_TEMPLATE, known | inserted)
        added = [read_statements(share[DECLARATIONS], facts.table, name) for name, share in shares]
        return Block(
            tuple(each for block in (own, *added) for each in block.declarations),
            tuple(each for block in (own, *added) for each in block.lines),
        )

    def _blocks_of(self, part: Part, known: Mapping[str, object]) -> dict[str, str]:
        """The text of each block of a template for a skeleton."""
        template = self._templates[part.template]
        context = template.new_context({**known, **msgspec.structs.asdict(part.facts)})
        try:
            return {name: "".join(block(context)) for name, block in template.blocks.items()}
        except Exception as error:  # as in `_text`
            raise TemplateError(_fault(part.template, error)) from error

    def port(self, facts: PortFacts, table: str) -> Block:
        """The block of a Service port, including the lists and draws that it shares with other ports."""
        long = {field: tuple(filter(_is_long, getattr(facts, field))) for field in _LISTS}
        if any(long.values()):
            short = {field: tuple(itertools.filterfalse(_is_long, getattr(facts, field))) for field in _LISTS}
            block = self._service(msgspec.structs.replace(facts, **short), table)
        else:
            block = self._service(facts, table)
        rows = [
            line
            for field, lists in long.items()
            for slots in lists
            for line in self._long(field, slots, facts.protocol, table)
        ]
        if not facts.additions:  # as with nearly every Service port
            return Block(self._shared(facts.lists, facts.draws, ()) + block.declarations, (*block.lines, *rows))
        parts = tuple(part for each in facts.additions for part in each.shared)
        known = {"table": table, "protocol": facts.protocol}
        added = [self._part_block(each.elements, known).lines for each in facts.additions]
        lines = dict.fromkeys(itertools.chain(block.lines, rows, *added))
        return Block(self._shared(facts.lists, facts.draws, parts) + block.declarations, tuple(lines))

    def _service(self, facts: PortFacts, table: str) -> Block:
        return self._block(SERVICE_TEMPLATE, {"table": table, **msgspec.structs.asdict(facts)})

    def _long(self, field: str, slots: Slots, protocol: str, table: str) -> tuple[Line, ...]:
        """The elements of a long list.  Only rows that differ from the cached rows are rendered again."""

        def written(rows: tuple[Row, ...]) -> tuple[Line, ...]:
            alone = msgspec.structs.replace(PortFacts(protocol, ()), **{field: (Slots(slots.list, slots.front, rows),)})
            return self._service(alone, table).lines if rows else ()

        key = table, field, slots.list, slots.front
        rows, lines = self._rows.pop(key, ((), ()))
        both = min(len(rows), len(slots.rows))
        new = [*itertools.compress(range(both), map(operator.ne, rows, slots.rows)), *range(both, len(slots.rows))]
        made = written(tuple([slots.rows[at] for at in new]))
        if len(made) != len(new):  # a customised template that doesn't write exactly one element for each row
            return written(slots.rows)
        found = list(lines[:both])
        for at, line in zip(new, made, strict=True):
            found[at : at + 1] = [line]
        self._rows[key] = slots.rows, tuple(found)
        while len(self._rows) > LONG_LISTS:
            del self._rows[next(iter(self._rows))]
        return self._rows[key][1]

    def whole_table(self, part: Part) -> WholeTable:
        """A table of its own, which isn't split into statements: it is loaded as a whole or not at all.

        The facts of the part have a field `comment`.
        """
        plain = self._text(part.template, msgspec.structs.asdict(part.facts))
        comment = f"{TABLE} {hashlib.sha256(plain.encode()).hexdigest()[:16]}"
        named = msgspec.structs.replace(part.facts, comment=comment)
        return WholeTable(self._text(part.template, msgspec.structs.asdict(named)), comment)

    def shape(self, facts: TableFacts) -> str:
        """A hash of every declaration that the kernel can't change in place, but for maps of slots.

        If the kernel refuses a load because of a map of slots, the next load replaces the table.  One sample stands for
        the other chains, sets and maps that come with Service ports.  The shares of extensions that a Service may ask
        for later are always part of the shape, so that no table is replaced when the first Service asks for them.
        """
        sample = ListFacts(
            table=facts.table,
            ip=facts.ip,
            protocol=facts.protocols[0],
            prefix="",
            list=f"{facts.protocols[0]}-endpoints",
            asked=f"ct original {facts.ip} daddr . tcp dport",
            asked_front=f"ct original {facts.ip} daddr . meta l4proto . th dport",
            numbers=facts.numbers,
            first=facts.zero,
            race=facts.endings.race,
            affinities=((1, facts.zero),),
        )
        known = msgspec.structs.asdict(facts)
        later = (self._later(part, known) for part in facts.later)
        lines = map(_shape_line, itertools.chain(self.table(facts).declarations, self._list(sample), *later))
        return hashlib.sha256("".join(sorted(set(lines))).encode()).hexdigest()[:16]

    def _later(self, part: Part, known: Mapping[str, object]) -> tuple[Declaration, ...]:
        """The declarations of a part that a Service may ask for later, with a template of either kind."""
        if DECLARATIONS in self._templates[part.template].blocks:
            return read_statements(self._blocks_of(part, known)[DECLARATIONS], str(known["table"]), "").declarations
        return self._part(part)

    def _render_list(self, facts: ListFacts) -> tuple[Declaration, ...]:
        return _with_entries(self._block(ENDPOINTS_TEMPLATE, msgspec.structs.asdict(facts)), ENDPOINTS_TEMPLATE)

    def _render_draw(self, facts: DrawFacts) -> tuple[Declaration, ...]:
        made = _with_entries(self._block(DRAW_TEMPLATE, msgspec.structs.asdict(facts)), DRAW_TEMPLATE)
        return tuple(map(self._shared_map, made))

    def _shared_map(self, made: Declaration) -> Declaration:
        """Return the equal map of an earlier draw, if any has it.  A map of slots may have 65,536 elements."""
        if made.kind is not NftKind.MAP:
            return made
        known = self._maps.get(made.name)
        if known != made:
            self._maps[made.name] = known = made
        return known

    def _gather_shared(
        self, lists: tuple[ListFacts, ...], draws: tuple[DrawFacts, ...], parts: tuple[Part, ...]
    ) -> tuple[Declaration, ...]:
        """The declarations that a Service port shares with others, as a tuple that all ports with them share."""
        each = itertools.chain(*map(self._list, lists), *map(self._draw, draws), *map(self._part, parts))
        return tuple(dict.fromkeys(each))

    def _render_part(self, part: Part) -> tuple[Declaration, ...]:
        return self._part_block(part, {}).declarations

    def _part_block(self, part: Part, known: Mapping[str, object]) -> Block:
        return self._block(part.template, {**known, **msgspec.structs.asdict(part.facts)})

    def _block(self, name: str, facts: Mapping[str, object]) -> Block:
        return read_statements(self._text(name, facts), str(facts["table"]), name)

    def _text(self, name: str, facts: Mapping[str, object]) -> str:
        try:
            return self._templates[name].render(facts)
        except Exception as error:  # an expression in a template may raise any exception
            raise TemplateError(_fault(name, error)) from error


def _is_long(slots: Slots) -> bool:
    return len(slots.rows) >= LONG


def _with_entries(block: Block, name: str) -> tuple[Declaration, ...]:
    """The declarations of a block, each with its elements as `entries`.

    An element whose verdict leads to a chain belongs to that chain.  Any other element belongs to its set or map.

    Raises:
        TemplateError: the template doesn't declare the chain, set or map that an element belongs to.
    """
    entries: dict[tuple[bool, str], list[Element]] = {(d.kind is NftKind.CHAIN, d.name): [] for d in block.declarations}
    for element in block.elements:
        verdict, _, chain = element.value.partition(" ")
        owner = (True, chain) if verdict in _LEADING else (False, element.container)
        if owner not in entries:
            wrong = f"this template doesn't declare the owner of an element: {element.container} {{ {element.text} }}"
            raise TemplateError(Problem(name, "", "", wrong, Code.TEMPLATE_FAULT))
        entries[owner].append(element)
    return tuple(
        msgspec.structs.replace(each, entries=tuple(entries[each.kind is NftKind.CHAIN, each.name]))
        for each in block.declarations
    )


def _compiled(environment: jinja2.Environment, name: str) -> jinja2.Template:
    try:
        return environment.get_template(name)
    except jinja2.TemplateSyntaxError as error:
        problem = Problem(
            error.name or name, "", f"line {error.lineno}", error.message or "syntax error", Code.TEMPLATE_FAULT
        )
        raise TemplateError(problem) from error
    except jinja2.TemplateNotFound as error:
        raise TemplateError(_no_template(name)) from error


def _no_template(name: str) -> Problem:
    return Problem(name, "", "", "no such template", Code.TEMPLATE_FAULT)


def _fault(name: str, error: Exception) -> Problem:
    """The problem to report for an error in a template, with the line: Jinja puts template lines into tracebacks."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return Problem(
        name, "", f"line {lines[-1]}" if lines else "", f"{type(error).__name__}: {error}", Code.TEMPLATE_FAULT
    )


def read_statements(text: str, table: str, name: str) -> Block:
    """Split rendered text into statements.

    Raises:
        TemplateError: a line has neither of the two forms.  The error quotes it, with its number in the rendered text.
    """
    elements, begin = _forms(table)
    if elements.fullmatch(text):  # as nearly all text
        whole = text.removeprefix(begin).removesuffix(_END).replace(" { ", " ")
        return Block(lines=tuple(dict.fromkeys(whole.split(_END + begin))))
    declarations: list[Declaration] = []
    found: dict[Line, None] = {}
    lines = enumerate(text.split("\n"), 1)
    for number, line in lines:
        if elements.fullmatch(f"{line}\n"):
            found[line.removeprefix(begin).removesuffix(" }").replace(" { ", " ", 1)] = None
        elif line == f"table {table} {{":
            declarations += _read_table(lines, name)
        elif line.strip() and not line.lstrip().startswith("#"):
            raise _no_statement(name, number, line)
    return Block(tuple(declarations), tuple(found))


_END = " }\n"


@functools.cache
def _forms(table: str) -> tuple[re.Pattern[str], str]:
    """Return the form of lines with elements, and the beginning of each such line.

    A block is compared by elements, so a line must have only one.
    """
    begin = f"add element {table} "
    return re.compile(rf"(?:{begin}[^\s{{]+ {{ [^, {{}}\n][^,{{}}\n]* }}\n)+"), begin


def _read_table(lines: Iterator[tuple[int, str]], name: str) -> Iterator[Declaration]:
    """Yield the declarations of a `table` block up to its closing brace, each with the comments right above it."""
    comments: list[str] = []
    for number, line in lines:
        words = line.split()
        if words == ["}"]:
            return
        if len(words) == 3 and words[0] in _KINDS and words[2] == "{":
            yield Declaration(_KINDS[words[0]], words[1], tuple(_read_body(lines, name)), tuple(comments))
            comments.clear()
        elif words and words[0].startswith("#"):
            comments.append(line.strip())
        elif words:
            raise _no_statement(name, number, line)
    raise _no_statement(name, 0, "a table block that is not closed")


def _read_body(lines: Iterator[tuple[int, str]], name: str) -> Iterator[str]:
    """Yield the lines of a declaration up to its closing brace."""
    for _, line in lines:
        words = line.split()
        if words == ["}"]:
            return
        if words:
            yield " ".join(words)
    raise _no_statement(name, 0, "a declaration that is not closed")


def _no_statement(name: str, number: int, line: str) -> TemplateError:
    where = f"rendered line {number}" if number else "rendered text"
    return TemplateError(
        Problem(name, "", where, f"neither a declaration nor an element: {line[:200]!r}", Code.TEMPLATE_FAULT)
    )


def _shape_line(declaration: Declaration) -> str:
    """The parts of a declaration that the kernel can't change in place: a whole set or map, a base chain's hook."""
    is_chain = declaration.kind is NftKind.CHAIN
    fixed = [line for line in declaration.body if not is_chain or line.startswith("type ")]
    return f"{declaration.kind.value} {declaration.name} {fixed}\n"
