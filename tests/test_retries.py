"""Pauses that grow are tenacity's (nftproxy/model/backoff.py): no module doubles a number of its own.

This finds the shape, a number that is multiplied by itself or by a power, and neither sums nor tables of pauses.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.style

PACKAGE = Path(__file__).resolve().parents[1] / "nftproxy"
NO_PAUSES = {
    "agent/reporting/metrics.py: 10 ** n",
    "agent/reporting/metrics.py: 2 ** n",
    "agent/reporting/metrics.py: 4 ** n",
    "api/annotation_parsers.py: 10 ** power",
    "extensions/least_connections/balance.py: self.factors[place] *= own ** (-GAIN)",
    "policy/choosing/slots.py: 1 << (count - 1).bit_length()",
    "policy/choosing/slots.py: 1 << block.bit_length() - 1",
    "policy/choosing/slots.py: drawn = drawn * 1664525 + 1013904223 & 4294967295",
    "policy/numbers.py: 1 << bits",
    "policy/ranges.py: 1 << -network.prefixlen % STRIDE",
    "policy/skeleton.py: 1 << config.masquerade_bit",
}
"""Numbers that grow so, and are buckets, decimals, shares, sizes, random numbers and bits."""


def growing(tree: ast.AST) -> Iterator[str]:
    """Yield each statement that multiplies a number that it also sets, and each power of variable exponent."""
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(op=ast.Mult() | ast.LShift() | ast.Pow()):
                yield ast.unparse(node)
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                if any(ast.unparse(target) in factors(each) for each in ast.walk(value)):
                    yield ast.unparse(node)
            case ast.BinOp(left=ast.Constant(), op=ast.Pow() | ast.LShift(), right=right) if not isinstance(
                right, ast.Constant
            ):
                if not ast.unparse(right).isupper():
                    yield ast.unparse(node)


def factors(node: ast.AST) -> list[str]:
    """The two factors of a product, of which one is a constant."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult() | ast.LShift(), right=right):
            return [ast.unparse(left), ast.unparse(right)] if ast.Constant in (type(left), type(right)) else []
    return []


def test_no_module_has_a_backoff_of_its_own() -> None:
    """No number of the package doubles, except those that are no pauses."""
    found = {
        f"{path.relative_to(PACKAGE)}: {each}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for each in growing(ast.parse(path.read_text()))
    }
    assert found == NO_PAUSES


@pytest.mark.parametrize(
    "source",
    [
        "pause *= 2",
        "pause = min(pause * 2, LONGEST)",
        "self._pause = min(2 * self._pause, self._longest)",
        "pause: float = 1.5 * pause",
        "pause = min(FIRST * 2**failures, LONGEST)",
        "delay <<= 1",
        "await asyncio.sleep(0.1 * (1 << attempt))",
    ],
)
def test_a_backoff_is_found(source: str) -> None:
    """Each usual way to write a backoff is found."""
    assert len(list(growing(ast.parse(source)))) == 1
