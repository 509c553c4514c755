"""No private name of a library is used: an upgrade may change it without a word."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("nftproxy", "conformance", "tools", "tests", "examples")
OURS = ("nftproxy", "nftproxy_conformance", "tests", "tools", "")
DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_exit", "_name_", "_value_", "_missing_"}
"""Names that are public in spite of their underscore: of named tuples, of `os` and of enums."""
ONLY_FOR_TYPES = {"zlib._Compress", "zlib._Decompress"}
"""Names that exist for mypy alone, where a type has no other."""


def is_private(name: str) -> bool:
    """Whether a name is private by convention."""
    return name.startswith("_") and not name.endswith("__")


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield each name that a module defines, also as an attribute of an object."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.alias(asname=str(name)):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self" | "cls" | "made")):
                yield name


def uses(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Yield each use of a private name that isn't among our own."""
    allowed = own | DOCUMENTED
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name) and name not in allowed:
                yield ast.unparse(node)
            case ast.Import(names=aliases):
                yield from (each.name for each in aliases if any(map(is_private, each.name.split("."))))
            case ast.ImportFrom(module=str(module), names=aliases) if module.split(".")[0] not in OURS:
                names = [f"{module}.{each.name}" for each in aliases]
                yield from (name for name in names if any(map(is_private, name.split("."))))


@pytest.mark.slow  # `make lint` has it
def test_no_private_name_of_a_library_is_used() -> None:
    """Each private name that is used, in the package, the judge, the tools and the tests, is defined there too."""
    trees = {path: ast.parse(path.read_text()) for each in FOLDERS for path in sorted((TOP / each).rglob("*.py"))}
    own = {name for tree in trees.values() for name in defined(tree)}
    found = {f"{path.relative_to(TOP)}: {use}" for path, tree in trees.items() for use in uses(tree, own)}
    assert {each for each in found if each.partition(": ")[2] not in ONLY_FOR_TYPES} == set()


@pytest.mark.parametrize(
    "source",
    [
        "api._create_session()",
        "transport._pool._network_backend = backend",
        "from kr8s._api import Api",
        "from kr8s import _api",
        "import httpx._main",
        "getattr(a, 'b')._session.aclose()",
    ],
)
def test_a_private_name_is_found(source: str) -> None:
    """An attribute, a module or an import that begins with an underscore is found."""
    assert list(uses(ast.parse(source), {"_own"}))


def test_our_own_names_are_no_fault() -> None:
    """Names of ours, those of named tuples, and those between two underscores each are no fault."""
    source = (
        "from __future__ import annotations\nfrom tests.x import _own\na._own, a._replace(), a.__class__, os._exit(1)"
    )
    assert list(uses(ast.parse(source), {"_own"})) == []
