"""Pauses before retries, and that all of the package come from here or from tenacity."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import nftproxy
from nftproxy.model.backoff import Backoff

PACKAGE = Path(nftproxy.__file__).parent


def test_pauses_double_up_to_the_longest() -> None:
    """The first pause follows the first failure, and twice the last pause, or the longest, each further failure."""
    backoff = Backoff(0.2, 5.0)
    assert [backoff.pause(failures) for failures in range(1, 8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.pause(1_000_000) == 5.0
    assert Backoff(0.0, 5.0).pause(9) == 0.0


def is_two(node: ast.expr) -> bool:
    """True for the number 2, as an integer or a float."""
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 2


def is_doubling(node: ast.AST) -> bool:
    """True for twice a variable, and for a power of two with a variable."""
    match node:
        case ast.BinOp(left=factor, op=ast.Mult(), right=ast.Name() | ast.Attribute()):
            return is_two(factor)
        case ast.BinOp(left=ast.Name() | ast.Attribute(), op=ast.Mult(), right=factor):
            return is_two(factor)
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return is_two(base) and not isinstance(exponent, ast.Constant)
    return False


def doublings(tree: ast.AST) -> Iterator[str]:
    """Yield each expression that doubles a variable up to a bound, or in place."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="min"), args=arguments):
                if any(is_doubling(inner) for each in arguments for inner in ast.walk(each)):
                    yield ast.unparse(node)
            case ast.AugAssign(op=ast.Mult(), value=factor) if is_two(factor):
                yield ast.unparse(node)
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                if ast.unparse(target) in [ast.unparse(each) for each in ast.walk(value) if isinstance(each, ast.expr)]:
                    yield ast.unparse(node)
            case ast.Assign(targets=[target], value=ast.BinOp() as value) if is_doubling(value):
                if ast.unparse(target) in (ast.unparse(value.left), ast.unparse(value.right)):
                    yield ast.unparse(node)


@pytest.mark.style
def test_no_module_doubles_its_own_pauses() -> None:
    """No module of the package doubles a variable in place or up to a bound, as hand-written backoff does."""
    found = {
        f"{path.relative_to(PACKAGE)}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for text in doublings(ast.parse(path.read_text()))
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        "pause = min(2 * pause, LONGEST)",
        "self._pause = min(self._pause * 2, LONGEST) or FIRST",
        "pause = min(FIRST * 2.0 ** min(failures, 10), LONGEST)",
        "pause *= 2",
        "note += min(note, LONGEST)",
        "pause = 2 * pause",
    ],
)
def test_a_hand_written_doubling_is_found(source: str) -> None:
    """Each form in which this package, or one like it, has doubled pauses is found."""
    assert len(list(doublings(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source", ["end = 2 * width", "min(2 * 2768, files // 4)", "size = 2**20", "min(2 * len(rest), MOST)"]
)
def test_other_arithmetic_is_no_doubling(source: str) -> None:
    """Twice a number or a length isn't backoff."""
    assert list(doublings(ast.parse(source))) == []
