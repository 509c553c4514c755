"""No private name of a library is used: an upgrade may change it without a word.

Two checks complement each other.  A private name that nothing of ours defines belongs to somebody else.  A private name
that a library defines too is used on `self` alone, or in the module that defines it.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.style

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("nftproxy", "conformance", "tools", "tests", "examples")
OURS = ("nftproxy", "nftproxy_conformance", "tests", "tools", "")
DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_exit", "_name_", "_value_", "_missing_"}
"""Names that are public in spite of their underscore: of named tuples, of `os` and of enums."""
ONLY_FOR_TYPES = {"zlib._Compress", "zlib._Decompress"}
"""Names that exist for mypy alone, where a type has no other."""
LIBRARIES = (
    *("kr8s", "httpx", "httpcore", "h11", "anyio", "socksio", "jinja2", "nftables", "tenacity", "msgspec"),
    *("prometheus_client", "click", "yaml"),
)
"""The packages that the package depends on, and those that httpx depends on."""
OURS_IN_SPITE_OF_THE_NAME = {
    "tests/agent/reporting/test_event_series.py: correlator._buckets",
    "tests/sources/test_interfaces.py: monkeypatch.setattr(interfaces, '_dump', asked)",
}
"""Names of objects of ours that other modules of ours define, and a library by chance too."""
BY_NAME = {"getattr", "setattr", "delattr", "hasattr", "attrgetter", "__getattribute__", "object"}
"""Functions that take the name of an attribute as a text, `mock.patch.object` among them."""


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


@functools.cache
def names_of(library: str) -> frozenset[str]:
    """The private names that the installed modules of a library define, and of these modules."""
    spec = importlib.machinery.PathFinder.find_spec(library)
    assert spec, library
    assert spec.origin, library
    top = Path(spec.origin).parent
    files = list(top.rglob("*.py")) if spec.submodule_search_locations else [Path(spec.origin)]
    modules = {part for file in files for part in file.relative_to(top).with_suffix("").parts}
    names = {name for file in files for name in defined(ast.parse(file.read_bytes()))}
    return frozenset(name for name in names | modules if is_private(name))


@functools.cache
def names_of_libraries() -> frozenset[str]:
    """The private names that any of the libraries defines."""
    return frozenset[str]().union(*map(names_of, LIBRARIES)) - DOCUMENTED


def uses_of_libraries(tree: ast.AST) -> Iterator[str]:
    """Yield each use of a private name that a library defines, on another object than `self` or an own class."""
    names = names_of_libraries()
    foreign = names - set(defined(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=name) if name in foreign or (name in names and is_of_library(tree, node.value)):
                yield ast.unparse(node)
            case ast.MatchClass(kwd_attrs=attributes) if names.intersection(attributes):
                yield ast.unparse(node)
            case ast.Constant(value=str(text)) if is_path_of_library(text):
                yield text
            case ast.Subscript(
                value=ast.Call(func=ast.Name(id="vars")) | ast.Attribute(attr="__dict__"),
                slice=ast.Constant(value=text),
            ) if text in foreign:
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=arguments):
                if function in BY_NAME and any(text in names or text == "_" for text in map(beginning, arguments)):
                    yield ast.unparse(node)
            case ast.ClassDef(bases=bases) if any(map(functools.partial(is_of_library, tree), bases)):
                inner = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
                yield from (ast.unparse(each) for each in inner if each.attr in names - set(defined(node)))


def beginning(argument: ast.expr) -> object:
    """The constant that an argument is, or with which it begins."""
    match argument:
        case ast.Constant(value=value) | ast.JoinedStr(values=[ast.Constant(value=value), *_]):
            return value
    return None


def is_path_of_library(text: str) -> bool:
    """Whether a text is the path of something private of a library, as `monkeypatch.setattr` takes it."""
    first, *others = text.split(".")
    return first in LIBRARIES and any(map(is_private, others)) and all(map(str.isidentifier, others))


def is_of_library(tree: ast.AST, base: ast.expr) -> bool:
    """Whether a class's base comes from a library, by the imports of the module."""
    root = ast.unparse(base).split("[")[0].split(".")[0]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        for alias in node.names:
            source = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
            if (alias.asname or alias.name).split(".")[0] == root and source.split(".")[0] in LIBRARIES:
                return True
    return False


def test_a_private_name_of_a_library_is_used_on_no_other_object() -> None:
    """A name that kr8s, httpx, Jinja or another library has too is never used on an object that may be theirs."""
    found = {
        f"{path.relative_to(TOP)}: {use}"
        for folder in FOLDERS
        for path in sorted((TOP / folder).rglob("*.py"))
        for use in uses_of_libraries(ast.parse(path.read_text()))
    }
    assert found == OURS_IN_SPITE_OF_THE_NAME


@pytest.mark.parametrize(
    "source",
    [
        "api._create_session()",
        "client._transport.close()",
        "environment._load_template('a', None)",
        "nft.__ctx.value",
        "retrying._run_retry(state)",
        "setattr(api, '_session', session)",
        "vars(api)['_create_session']",
        "object.__getattribute__(api, '_create_session')",
        "mock.patch.object(client, '_transport_for_url')",
        "monkeypatch.setattr('kr8s._api.Api.session', None)",
        "importlib.import_module('kr8s._auth')",
        "import httpx\nhttpx._config.DEFAULT_TIMEOUT_CONFIG",
        "match api:\n case Api(_session=session): pass",
        "getattr(api, f'_{name}')",
        "import httpx\nclass Own(httpx.AsyncHTTPTransport):\n def f(self): return self._pool",
        "from kr8s.asyncio import Api\nclass Own(Api):\n async def f(self): return await self._create_session()",
    ],
)
def test_a_private_name_of_a_library_is_found(source: str) -> None:
    """A private name of kr8s, httpx, Jinja, nftables or tenacity is found, in a class derived from theirs too."""
    assert len(list(uses_of_libraries(ast.parse(source)))) == 1


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
        "nft._Nftables__ctx",
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
