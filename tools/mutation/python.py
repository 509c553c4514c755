"""Faults of Python code, made at the positions in its syntax tree.

Some code is left alone: docstrings, annotations, decorators, class keywords (frozen, gc), the inside of f-strings (as
Python 3.11 has no positions for it), and values whose removal the interpreter itself would notice.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence

from tools.mutation.mutant import Fault

COMPARISONS: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}

OPERATORS: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.BitXor: ("^", "|"),
    ast.LShift: ("<<", ">>"),
}


def _both_ways(pairs: str) -> dict[str, str]:
    """Parse pairs ("a/b c/d") into a table that maps both words of a pair to each other."""
    table: dict[str, str] = {}
    for pair in pairs.split():
        one, other = pair.split("/")
        table |= {one: other, other: one}
    return table


SWAPS = _both_ways(
    "CLUSTER/LOCAL cluster/local IPV4/IPV6 TCP/UDP REFUSE/DISCARD READY/LAST_RESORT NOT_READY/TERMINATING "
    "OTHER_NODE_HINT/OTHER_ZONE_HINT is_ready/is_last_resort ready/serving node_hints/zone_hints "
    "internal_policy/external_policy external_ips/load_balancer_ips port/node_port CLUSTER_CIDR/NODE_CIDR "
    "services/short_circuits added/removed add/remove any/all min/max waiting/untaken steady/wall "
    "removeprefix/removesuffix cluster_cidrs/pod_cidrs internal/external"
) | {"sorted": "list", "reversed": "list", "discard": "add", "cluster_ips": "external_ips"}
"""Names that are easily confused.  A variable is replaced only by a name of the same module or a builtin."""

EMPTY = {
    "str": '""',
    "int": "0",
    "tuple[": "()",
    "list[": "[]",
    "dict[": "{}",
    "set[": "set()",
    "frozenset[": "frozenset()",
    "Mapping[": "{}",
}
"""The empty value of a function's return type, by the beginning of its annotation."""

UNTOUCHED_CALLS = {"TypeVar", "NewType", "ParamSpec", "cast"}
UNTOUCHED_KEYWORDS = {"strict", "gc", "frozen"}


def faults(source: bytes) -> Iterator[Fault]:
    """Yield every fault of a module."""
    return _Finder(source).module(ast.parse(source))


class _Finder:
    """A walk through a module, with the present position."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._line_starts = [0]
        for line in source.split(b"\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        self._where: tuple[str, ...] = ()
        self._lines = (0, 0)
        self._returns = ""
        self._bound_once: set[str] = set()
        self._names: set[str] = set()

    def module(self, tree: ast.Module) -> Iterator[Fault]:
        self._names = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)} | set(dir(builtins))
        for statement in tree.body:
            yield from self._statement(statement)

    # statements

    def _statement(self, node: ast.stmt) -> Iterator[Fault]:  # noqa: C901 -- a table of kinds of statements
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._function(node)
            case ast.ClassDef():
                yield from self._inside(node.name, node.body)
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Global() | ast.Nonlocal():
                pass
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(value=ast.Subscript() | ast.BinOp(op=ast.BitOr())) if not self._where:
                pass  # a type alias
            case ast.If() | ast.While():
                yield from self._compound(node, [*self._condition(node.test)], node.body, node.orelse)
            case ast.For() | ast.AsyncFor():
                yield from self._compound(node, [*self._loop(node.iter)], node.body, node.orelse)
            case ast.With() | ast.AsyncWith():
                inner = [fault for item in node.items for fault in self._expression(item.context_expr)]
                yield from self._compound(node, inner, node.body)
            case ast.Try():
                yield from self._compound(node, [], node.body, *(each.body for each in node.handlers), node.orelse)
                yield from self._compound(node, [], node.finalbody)
            case ast.Match():
                yield from self._expression(node.subject)
                for case in node.cases:
                    if case.guard is not None:
                        yield from self._condition(case.guard)
                    yield from self._compound(node, [*self._drop_body(case.body)], case.body)
            case _:
                self._lines = (node.lineno, node.end_lineno or node.lineno)
                if self._may_drop(node):
                    yield self._fault(node, "pass", "dropped")
                yield from self._simple(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Fault]:
        before = self._returns, self._bound_once
        self._returns = ast.unparse(node.returns) if node.returns else ""
        names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
        self._bound_once = {name for name in names if names.count(name) == 1}
        self._lines = (node.lineno, node.body[0].lineno - 1)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            yield from self._expression(default)
        yield from self._inside(node.name, node.body)
        self._returns, self._bound_once = before

    def _inside(self, name: str, body: Sequence[ast.stmt]) -> Iterator[Fault]:
        self._where = (*self._where, name)
        for statement in body:
            yield from self._statement(statement)
        self._where = self._where[:-1]

    def _compound(self, node: ast.stmt, own: Sequence[Fault], *bodies: Sequence[ast.stmt]) -> Iterator[Fault]:
        yield from own
        is_plain_if = isinstance(node, ast.If) and not node.orelse
        for body in bodies:
            for statement in body:
                found = self._statement(statement)
                # a condition that is never true has the same effect
                alone = len(body) == 1 and (is_plain_if or isinstance(node, ast.Match))
                yield from (fault for fault in found if not (alone and fault.change == "dropped"))

    def _drop_body(self, body: Sequence[ast.stmt]) -> Iterator[Fault]:
        if not all(isinstance(each, ast.Pass) for each in body):
            start, _ = self._span(body[0])
            _, end = self._span(body[-1])
            self._lines = (body[0].lineno, body[-1].end_lineno or 0)
            yield Fault(start, end, "pass", "case dropped", self._place, self._lines)

    def _may_drop(self, node: ast.stmt) -> bool:
        """Return whether only a test would notice that a statement is missing."""
        match node:
            case ast.Assign(targets=targets):
                return any(self._may_be_unbound(target) for target in targets)
            case ast.AnnAssign(target=target, value=value):
                return value is not None and self._may_be_unbound(target)
            case ast.Return(value=value):
                return value is None
            case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Continue() | ast.Break():
                return True
            case _:
                return False

    def _may_be_unbound(self, target: ast.expr) -> bool:
        match target:
            case ast.Attribute() | ast.Subscript():
                return True
            case ast.Name(id=name):
                return bool(self._returns) and name not in self._bound_once
            case _:
                return False

    def _simple(self, node: ast.stmt) -> Iterator[Fault]:
        match node:
            case ast.Return(value=ast.expr() as value):
                yield from self._returned(value)
                yield from self._expression(value)
            case ast.AugAssign():
                one, other = OPERATORS[type(node.op)]
                start = self._span(node.target)[1]
                end = self._span(node.value)[0]
                yield Fault(start, end, f" {other}= ", f"{one}= -> {other}=", self._place, self._lines)
                yield Fault(start, end, " = ", f"{one}= -> =", self._place, self._lines)
                yield from self._expression(node.value)
            case ast.Assign():
                for target in node.targets:
                    if isinstance(target, ast.Subscript):
                        yield from self._expression(target.slice)
                yield from self._expression(node.value)
            case (
                ast.AnnAssign(value=ast.expr() as value)
                | ast.Expr(value=ast.expr() as value)
                | ast.Raise(exc=ast.expr() as value)
            ):
                yield from self._expression(value)

    def _returned(self, value: ast.expr) -> Iterator[Fault]:
        if self._returns == "bool" and not isinstance(value, ast.Constant):
            yield self._fault(value, f"not ({self._text(value)})", "returns the opposite")
        if self._returns.endswith("| None") and not (isinstance(value, ast.Constant) and value.value is None):
            yield self._fault(value, "None", "returns None")
        for begin, empty in EMPTY.items():
            if self._returns.startswith(begin) and ast.unparse(value) not in (empty, "''"):
                yield self._fault(value, empty, f"returns {empty}")

    # expressions

    def _condition(self, node: ast.expr) -> Iterator[Fault]:
        self._lines = (node.lineno, node.end_lineno or node.lineno)
        for constant in ("True", "False"):
            yield self._fault(node, constant, f"condition {constant}")
        yield from self._expression(node)

    def _loop(self, node: ast.expr) -> Iterator[Fault]:
        self._lines = (node.lineno, node.end_lineno or node.lineno)
        yield self._fault(node, f"list({self._text(node)})[:1]", "first only")
        yield self._fault(node, "()", "no loop")
        yield from self._expression(node)

    def _expression(self, node: ast.expr) -> Iterator[Fault]:  # noqa: C901 -- as `_statement`
        match node:
            case ast.Constant():
                yield from self._constant(node)
            case ast.JoinedStr():
                yield self._fault(node, '""', 'f-string -> ""')
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield from self._name(node, name)
            case ast.Compare():
                yield from self._compare(node)
            case ast.BoolOp():
                yield from self._bool_op(node)
            case ast.UnaryOp(op=ast.Not()):
                yield self._fault(node, f"({self._text(node.operand)})", "not dropped")
            case ast.BinOp() if type(node.op) in OPERATORS:
                one, other = OPERATORS[type(node.op)]
                yield self._fault(
                    node, f"({self._text(node.left)}) {other} ({self._text(node.right)})", f"{one} -> {other}"
                )
            case ast.IfExp():
                yield self._fault(node, f"({self._text(node.body)})", "condition True")
                yield self._fault(node, f"({self._text(node.orelse)})", "condition False")
            case ast.Call(func=ast.Name(id=name)) if name in UNTOUCHED_CALLS:
                return
            case ast.Call():
                yield from self._call(node)
            case ast.Tuple() | ast.List() | ast.Set():
                yield from self._display(node)
            case ast.Dict():
                yield from self._dict(node)
            case ast.Subscript(slice=ast.Slice()):
                yield self._fault(node, self._text(node.value), "slice dropped")
        yield from self._children(node)

    def _children(self, node: ast.AST) -> Iterator[Fault]:
        """Yield the faults of the expressions in a node, except some keywords and the inside of f-strings."""
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.keyword(arg=str() as name, value=value):
                    if name not in UNTOUCHED_KEYWORDS:
                        yield from self._expression(value)
                case ast.comprehension():
                    yield self._fault(child.iter, f"list({self._text(child.iter)})[:1]", "first only")
                    yield from self._expression(child.iter)
                    for condition in child.ifs:
                        yield self._fault(condition, "True", "condition True")
                        yield self._fault(condition, "False", "condition False")
                        yield from self._expression(condition)
                case ast.FormattedValue():
                    pass
                case ast.expr() if not isinstance(node, ast.JoinedStr):
                    yield from self._expression(child)
                case ast.keyword() | ast.Slice():
                    yield from self._children(child)

    def _constant(self, node: ast.Constant) -> Iterator[Fault]:
        match node.value:
            case bool():
                yield self._fault(node, str(not node.value), f"{node.value} -> {not node.value}")
            case int() | float():
                yield self._fault(node, str(node.value + 1), f"{node.value} -> {node.value + 1}")
            case "":
                yield self._fault(node, '"mutant"', '"" -> "mutant"')
            case str():
                yield self._fault(node, '""', 'string -> ""')

    def _name(self, node: ast.Name | ast.Attribute, name: str) -> Iterator[Fault]:
        other = SWAPS.get(name)
        if other and (isinstance(node, ast.Attribute) or other in self._names):
            _, end = self._span(node)
            yield Fault(end - len(name), end, other, f"{name} -> {other}", self._place, self._lines)

    def _compare(self, node: ast.Compare) -> Iterator[Fault]:
        operands = [node.left, *node.comparators]
        for index, operator in enumerate(node.ops):
            one, other = COMPARISONS[type(operator)]
            start, end = self._between(operands[index], operands[index + 1], one)
            yield Fault(start, end, other, f"{one} -> {other}", self._place, self._lines)

    def _bool_op(self, node: ast.BoolOp) -> Iterator[Fault]:
        one, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        texts = [f"({self._text(value)})" for value in node.values]
        yield self._fault(node, f"({f' {other} '.join(texts)})", f"{one} -> {other}")
        for index, text in enumerate(texts):
            rest = f" {one} ".join(texts[:index] + texts[index + 1 :])
            yield self._fault(node, f"({rest})", f"{_short(text[1:-1])} dropped from {one}")

    def _call(self, node: ast.Call) -> Iterator[Fault]:
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in UNTOUCHED_KEYWORDS:
                start, end = self._span(keyword)
                yield Fault(*self._with_comma(start, end), "", f"{keyword.arg}= dropped", self._place, self._lines)

    def _display(self, node: ast.Tuple | ast.List | ast.Set) -> Iterator[Fault]:
        for element in node.elts if len(node.elts) > 1 else ():
            start, end = self._span(element)
            text = _short(self._text(element))
            if isinstance(node, ast.Tuple) and len(node.elts) == 2:
                (other,) = (each for each in node.elts if each is not element)
                yield self._fault(node, f"({self._text(other)},)", f"{text} dropped")
                continue
            yield Fault(*self._with_comma(start, end), "", f"{text} dropped", self._place, self._lines)

    def _dict(self, node: ast.Dict) -> Iterator[Fault]:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                start, end = self._span(key)[0], self._span(value)[1]
                text = _short(self._text(key))
                yield Fault(*self._with_comma(start, end), "", f"{text} dropped", self._place, self._lines)

    # places

    @property
    def _place(self) -> str:
        return ".".join(self._where)

    def _fault(self, node: ast.expr | ast.stmt, new: str, change: str) -> Fault:
        return Fault(*self._span(node), new, change, self._place, self._lines)

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._line_starts[node.lineno - 1] + node.col_offset,
            self._line_starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _between(self, left: ast.expr, right: ast.expr, operator: str) -> tuple[int, int]:
        """Return the place of the operator between two operands, which may be in parentheses."""
        start, end = self._span(left)[1], self._span(right)[0]
        words = operator.encode()
        found = self._source.index(words, start, end)
        return found, found + len(words)

    def _with_comma(self, start: int, end: int) -> tuple[int, int]:
        """Return the place of an element with a comma after it, or else with the comma before it."""
        rest = self._source[end : end + 2]
        if rest[:1] == b",":
            return start, end + (2 if rest == b", " else 1)
        before = self._source[:start].rstrip()
        return (len(before) - 1 if before.endswith(b",") else start), end


def _short(text: str) -> str:
    """Shorten a piece of code for the name of a fault."""
    return " ".join(text.split())[:60]
