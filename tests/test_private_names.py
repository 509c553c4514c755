"""No private name of a library is used: an upgrade may change it without a word.

Two checks complement each other.  A private name that nothing of ours defines belongs to somebody else.  A private name
that a library defines too, the standard library among them, is used on `self` alone, or on a module or class of ours
that defines it.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.style

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("nftproxy", "conformance", "tools", "tests", "examples", ".ci")
OURS = ("nftproxy", "nftproxy_conformance", "tests", "tools", "")
DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_exit", "_name_", "_value_", "_missing_"}
"""Names that are public in spite of their underscore: of named tuples, of `os` and of enums."""
ONLY_FOR_TYPES = {"zlib._Compress", "zlib._Decompress"}
"""Names that exist for mypy alone, where a type has no other."""
LIBRARIES = (
    *("kr8s", "httpx", "httpx_ws", "httpcore", "h11", "anyio", "wsproto", "socksio", "box", "jinja2", "nftables"),
    *("tenacity", "msgspec", "idna", "prometheus_client", "click", "yaml", "pyroute2", "asyncinotify"),
    *("pytest", "_pytest", "hypothesis", "trustme", "aiohttp", "cryptography", "coverage"),
)
"""The packages that are imported, and those below kr8s, httpx and pytest."""
UNREAD = {
    *("matplotlib", "grpc", "google", "mkdocs", "helm_python", "grafana_foundation_sdk", "kubernetes_validate"),
    "hatchling",
}
"""Packages of single tools and tests, with so much code that only the first check is made of them."""
OURS_IN_SPITE_OF_THE_NAME = {
    "nftproxy/kernel/namespace.py: getattr(self, '_thread_id', None)",
    "tests/agent/reporting/test_event_series.py: correlator._buckets",
    "tests/api/test_reflector.py: reader._rest",
    "tests/kernel/conntrack/test_successive_sweeps.py: monkeypatch.setattr(swept._sweeper, '_rest', note_rest)",
    "tests/kernel/conntrack/test_successive_sweeps.py: swept._sweeper._rest",
    "tests/model/test_fairness.py: debts._first",
    "tests/system/e2e/test_fast_path.py: flow._client",
    "conformance/nftproxy_conformance/lab/pods.py: host._link",
}
"""Names of objects of ours that other modules of ours define, and a library by chance too."""
BY_NAME = {"getattr", "setattr", "delattr", "hasattr", "attrgetter", "methodcaller", "__getattribute__", "object"}
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
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self" | "cls")):
                yield name


@functools.cache
def sources() -> Mapping[str, ast.Module]:
    """Return each module, by its path in the checkout, and the Python of each page."""
    files = [TOP / "hatch_build.py", *(path for each in FOLDERS for path in sorted((TOP / each).rglob("*.py")))]
    found = {str(path.relative_to(TOP)): ast.parse(path.read_text()) for path in files}
    for page in sorted(TOP.glob("docs/**/*.md")):
        for text in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            found[str(page.relative_to(TOP))] = ast.parse(text)
    return found


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that a module's imports define, with the full name of what it stands for."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from ((each.asname or each.name.split(".")[0], each.name) for each in aliases)
            case ast.ImportFrom(module=str(module), names=aliases):
                yield from ((each.asname or each.name, f"{module}.{each.name}") for each in aliases)


def uses(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Yield each use of a private name that isn't among our own."""
    allowed = own | DOCUMENTED
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name) and name not in allowed:
                yield ast.unparse(node)
            case ast.keyword(arg=str(name)) if is_private(name) and name not in allowed:
                yield ast.unparse(node)
            case ast.Import(names=aliases):
                yield from (each.name for each in aliases if any(map(is_private, each.name.split("."))))
            case ast.ImportFrom(module=str(module), names=aliases) if module.split(".")[0] not in OURS:
                names = [f"{module}.{each.name}" for each in aliases]
                yield from (name for name in names if any(map(is_private, name.split("."))))


@functools.cache
def names_of(library: str) -> frozenset[str]:
    """The private names that the installed modules of a library define, and of these modules.  C has none."""
    spec = importlib.machinery.PathFinder.find_spec(library)
    if spec is None or spec.origin is None:
        assert library in sys.builtin_module_names, library
        return frozenset()
    top = Path(spec.origin).parent
    files = list(top.rglob("*.py")) if spec.submodule_search_locations else [Path(spec.origin)]
    files = [file for file in files if file.suffix == ".py"]
    modules = {part for file in files for part in file.relative_to(top).with_suffix("").parts}
    names = {name for file in files for name in defined(ast.parse(file.read_bytes()))}
    return frozenset(name for name in names | modules if is_private(name))


@functools.cache
def packages() -> frozenset[str]:
    """The packages and modules that are imported, the standard library's among them."""
    found = {full.split(".")[0] for tree in sources().values() for _, full in imported(tree)}
    return frozenset(found - set(OURS))


@functools.cache
def names_of_libraries() -> frozenset[str]:
    """The private names that any of the libraries defines, or a module of the standard library that is imported."""
    standard = packages() & sys.stdlib_module_names
    return frozenset[str]().union(*map(names_of, {*LIBRARIES, *standard})) - DOCUMENTED


@functools.cache
def names_of_ours(path: str) -> frozenset[str]:
    """The names that a module of ours defines, none if there is no such module."""
    return frozenset(defined(sources()[path])) if path in sources() else frozenset()


def is_of_ours(names: Mapping[str, str], value: ast.expr, name: str) -> bool:
    """Whether a name belongs to a module or class of ours: it is defined there.  `names` are the imported names."""
    full = names.get(ast.unparse(value).split(".")[0], "")
    path = full.replace(".", "/").replace("nftproxy_conformance/", "conformance/nftproxy_conformance/")
    return any(name in names_of_ours(f"{each}.py") for each in (path, f"{path}/__init__", path.rpartition("/")[0]))


def uses_of_libraries(tree: ast.AST) -> Iterator[str]:
    """Yield each use of a private name that a library defines, on another object than `self` or one of ours."""
    names = names_of_libraries()
    foreign = names - set(defined(tree))
    here = dict(imported(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=name, value=value) if name in names and not is_of_ours(here, value, name):
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
            case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=arguments, keywords=more):
                given = {part for each in [*arguments, *(one.value for one in more)] for part in parts(each)}
                by_name = function in BY_NAME and not any(is_of_ours(here, arguments[0], each) for each in given)
                if (by_name and given & {*names, COMPUTED}) or any(one.arg in names for one in more):
                    yield ast.unparse(node)
            case ast.ClassDef(bases=bases) if any(map(functools.partial(is_of_library, here), bases)):
                inner = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
                yield from (ast.unparse(each) for each in inner if each.attr in names - set(defined(node)))


COMPUTED = "_..."
"""A name that begins with an underscore, and is computed."""


def parts(argument: ast.expr) -> Iterator[str]:
    """Yield the names that an argument has, as `attrgetter("a._b")` takes them."""
    match argument:
        case ast.Constant(value=str(text)) if not is_path_of_library(text) and text.split(".")[0] not in OURS:
            yield from text.split(".")
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) | ast.BinOp(left=ast.Constant(value=str(text))):
            if text.startswith("_"):
                yield COMPUTED


def is_path_of_library(text: str) -> bool:
    """Whether a text is the path of something private of a library, as `monkeypatch.setattr` takes it."""
    first, *others = text.split(".")
    return first in LIBRARIES and any(map(is_private, others)) and all(map(str.isidentifier, others))


def is_of_library(names: Mapping[str, str], base: ast.expr) -> bool:
    """Whether a class's base comes from a library.  `names` are the imported names."""
    root = ast.unparse(base).split("[")[0].split(".")[0]
    return names.get(root, "").split(".")[0] in LIBRARIES


def test_each_package_is_known() -> None:
    """Each package that is imported, and isn't the standard library's, is in one of the lists."""
    assert packages() - sys.stdlib_module_names - set(LIBRARIES) == UNREAD


def test_templates_use_no_private_name() -> None:
    """No template has a private attribute, of Jinja's objects or of a fact."""
    templates = {str(path): path.read_text() for path in sorted(TOP.glob("templates/**/*.j2"))}
    assert templates
    assert [path for path, text in templates.items() if re.search(r"\._|\[['\"]_|attr\(['\"]_", text)] == []


def test_a_private_name_of_a_library_is_used_on_no_other_object() -> None:
    """A name that kr8s, httpx, Jinja or another library has too is never used on an object that may be theirs."""
    found = {f"{path}: {use}" for path, tree in sources().items() for use in uses_of_libraries(tree)}
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
        "getattr(api, '_create_' + name)",
        "getattr(api, '_%s' % name)",
        "operator.attrgetter('client._transport')(api)",
        "operator.methodcaller('_create_session')",
        "setattr(api, name='_session')",
        "kr8s.asyncio.api(_asyncio=False)",
        "def _session(): api._session",
        "handle._callback",
        "threading._active",
        "request._pyfuncitem",
        "from nftproxy.sources.api_client import Node\nNode._asyncio",
        "import httpx\nclass Own(httpx.AsyncHTTPTransport):\n def f(self): return self._pool",
        "from kr8s.asyncio import Api\nclass Own(Api):\n async def f(self): return await self._create_session()",
    ],
)
def test_a_private_name_of_a_library_is_found(source: str) -> None:
    """A private name of kr8s, httpx, Jinja, nftables or tenacity is found, in a class derived from theirs too."""
    assert len(list(uses_of_libraries(ast.parse(source)))) == 1


def test_no_private_name_of_a_library_is_used() -> None:
    """Each private name that is used, in the package, the judge, the tools and the tests, is defined there too."""
    own = {name for tree in sources().values() for name in defined(tree)}
    found = {f"{path}: {use}" for path, tree in sources().items() for use in uses(tree, own)}
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
        "from httpx import _client as client",
        "api(_asyncio=False)",
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
