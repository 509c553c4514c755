"""Imports point one way, from I/O to pure, and what is pure can do no I/O.

Two tables say all of it.  The layers order the modules: one may import only what stands in a line above its
own.  `PURE_MAY_IMPORT` is what pure modules may have from outside the package, each harmless: no clock, no
network, no files, no randomness.  The source is read with `ast`, so imports inside functions are seen too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "nftproxy"

PURE_LAYERS = (
    {"__init__"},  # `import nftproxy.x` runs it, so it may import nothing
    {"errors"},
    {"addresses"},
    {"model"},
    {"shape"},
    {"wire", "values"},
    {"services"},
    {"kinds"},
    {"parse", "config"},
    {"claims"},
    {"state"},
    {"endpoints"},
    {"facts"},
    {"compile"},
    {"flows", "health"},
    {"ruleset"},
    {"render"},
    {"pipeline"},
    {"answers", "complaints", "culprits", "selection"},
    {"reflector"},
    {"review"},
)
ENTRY_LAYERS = ({"agent"}, {"daemon"}, {"conformance"}, {"cli"}, {"__main__"})
PURE = frozenset[str]().union(*PURE_LAYERS)
RANK = {name: rank for rank, layer in enumerate(PURE_LAYERS) for name in layer}
# Between the two stands every other module: those do I/O, and may use each other.
IO_RANK = len(PURE_LAYERS)
RANK |= {name: IO_RANK + 1 + rank for rank, layer in enumerate(ENTRY_LAYERS) for name in layer}

PURE_MAY_IMPORT = frozenset(
    "__future__ abc bisect collections contextlib copy dataclasses datetime enum functools hashlib heapq "
    "ipaddress itertools math operator re string textwrap traceback types typing "
    "jinja2 msgspec".split()
)
# What still reads something: files, the clock, and the parts of the above that do.  YAML is for documents.py.
PURE_MAY_NOT_CALL = frozenset(
    "open input print exec eval __import__ read_text read_bytes write_text write_bytes now utcnow today".split()
)
PURE_MAY_NOT_NAME = frozenset("FileSystemLoader PackageLoader ModuleLoader FileSystemBytecodeCache yaml toml".split())
ONLY_IMPORTER = {
    "nftables": "kernel",
    "kr8s": "watch",
    "yaml": "documents",
    "ruamel": "documents",
    "msgspec.yaml": "documents",
}
# What the specification may know (conformance/oracle.py): values, and what the lab calls what it sees.
ORACLE_MAY_IMPORT = frozenset(
    f"nftproxy.{name}" for name in ("addresses", "config", "model", "lab.outcome", "lab.topology")
)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import; `from a import b` is a.b, as b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = f"{'nftproxy.' if node.level else ''}{node.module or ''}".rstrip(".")
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each use of what the two lists above forbid."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in PURE_MAY_NOT_CALL:
                yield node.lineno, name
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in PURE_MAY_NOT_NAME:
                yield node.lineno, name
            case ast.ImportFrom(names=aliases):
                yield from ((node.lineno, a.name) for a in aliases if a.name in PURE_MAY_NOT_NAME)


def inner_violation(module: str, name: str, known: frozenset[str]) -> str | None:
    """Say what is wrong with `module` importing `name`, which is `nftproxy` or below it."""
    target = name.removeprefix("nftproxy").removeprefix(".").split(".")[0]
    if target not in known:
        target = "__init__"  # `import nftproxy`, `from nftproxy import __version__`
    rank, other = RANK.get(module, IO_RANK), RANK.get(target, IO_RANK)
    if other < rank or (other == rank == IO_RANK) or target == module:  # a subpackage's modules use each other
        return None
    if module in PURE and target not in PURE:
        return f"imports nftproxy.{target}, which isn't among the pure modules; {module} is"
    return f"imports nftproxy.{target}, which doesn't come before {module} in the order of the modules"


def outer_violation(module: str, name: str) -> str | None:
    """Say what is wrong with `module` importing `name`, which is not ours."""
    for prefix, importer in ONLY_IMPORTER.items():
        if f"{name}.".startswith(f"{prefix}.") and module != importer:
            return f"imports {name}, which only {importer}.py may"
    if module in PURE and name.split(".")[0] not in PURE_MAY_IMPORT:
        return f"imports {name}; {module} is pure and that isn't on its list"
    return None


def violations(module: str, source: str, known: frozenset[str] = PURE) -> list[str]:
    """Return a line for each thing in a module's source text that breaks the tables above.

    Args:
        module: its name inside the package; of a subpackage's modules, the subpackage's.
        source: its text.
        known: the modules that the package has.
    """
    tree = ast.parse(source)
    found = []
    for line, name in imports(tree):
        ours = name.split(".")[0] == "nftproxy"
        wrong = inner_violation(module, name, known) if ours else outer_violation(module, name)
        if wrong:
            found.append(f"nftproxy/{module}.py:{line}: {wrong}")
    if module in PURE:
        found += [
            f"nftproxy/{module}.py:{line}: uses {name}; {module} is pure and may read nothing"
            for line, name in reads(tree)
        ]
    return list(dict.fromkeys(found))  # once, however many names come from one module


def module_of(path: Path) -> str:
    """Return the module, or subpackage, that a file of the package belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_imports_point_from_io_to_pure() -> None:
    """Every module of the package keeps to the tables."""
    paths = sorted(PACKAGE.rglob("*.py"))
    known = frozenset(module_of(path) for path in paths)
    found = [line for path in paths for line in violations(module_of(path), path.read_text(), known)]
    assert not found, "\n" + "\n".join(found)


def oracle_violations(source: str) -> list[str]:
    """Return a line for each import in a source text that would let the oracle know what it is to judge."""
    own = {".".join(name.split(".")[:-1]) for _, name in imports(ast.parse(source)) if name.startswith("nftproxy")}
    return [f"{name} is no value and no word of the lab's" for name in sorted(own - ORACLE_MAY_IMPORT)]


def test_the_oracle_shares_nothing_with_what_it_judges() -> None:
    """What says how connections must go imports values, the configuration and the lab's words, and reads nothing."""
    source = (PACKAGE / "conformance" / "oracle.py").read_text()
    assert oracle_violations(source) == []
    assert list(reads(ast.parse(source))) == []


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("from nftproxy.claims import Claims", "nftproxy.claims is"),
        ("from nftproxy.lab import Lab", "nftproxy.lab is"),
        ("def f():\n    from nftproxy.endpoints import choose", "nftproxy.endpoints is"),
    ],
)
def test_an_oracle_that_knows_too_much_is_named(source: str, complaint: str) -> None:
    """An import of what computes rules, or of the lab itself, is found."""
    (found,) = oracle_violations(source)
    assert found.startswith(complaint)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("errors", "from nftproxy.model import A", "imports nftproxy.model, which doesn't come before"),
        ("errors", "from .model import A", "imports nftproxy.model, which doesn't come before"),
        ("config", "from nftproxy import parse", "imports nftproxy.parse, which doesn't come before config"),
        ("state", "import nftproxy.kernel", "imports nftproxy.kernel, which isn't among the pure modules"),
        ("kernel", "import nftproxy.agent", "imports nftproxy.agent, which doesn't come before kernel"),
        ("compile", "def f():\n    import time", "imports time; compile is pure"),
        ("model", "from pathlib import Path", "imports pathlib.Path; model is pure"),
        ("model", "import os.path as p", "imports os.path; model is pure"),
        ("render", "from jinja2 import FileSystemLoader", "uses FileSystemLoader; render is pure"),
        ("render", "import jinja2\njinja2.PackageLoader('x')", "uses PackageLoader; render is pure"),
        ("config", "import msgspec\nmsgspec.yaml.decode(b'')", "uses yaml; config is pure"),
        ("config", "open('/etc/x')", "uses open; config is pure"),
        ("render", "def f(p):\n    return p.read_text()", "uses read_text; render is pure"),
        ("state", "import datetime as d\nd.datetime.now()", "uses now; state is pure"),
        ("agent", "from nftables import Nftables", "imports nftables.Nftables, which only kernel.py may"),
        ("source", "import kr8s.asyncio", "imports kr8s.asyncio, which only watch.py may"),
        ("cli", "import yaml", "imports yaml, which only documents.py may"),
    ],
)
def test_a_violation_is_named(module: str, source: str, complaint: str) -> None:
    """Each kind of forbidden import or use is found, once, with the module, the line and the import."""
    line = source.count("\n") + 1
    known = PURE | {"kernel", "agent"}
    found = violations(module, source, known)
    assert [text for text in found if text.startswith(f"nftproxy/{module}.py:{line}: {complaint}")] == found
    assert len(found) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("model", "import msgspec\nfrom nftproxy.errors import BadInput"),
        ("state", "def expired(at: float, now: float) -> bool:\n    return at < now"),
        ("render", "from jinja2 import DictLoader\nfrom nftproxy import compile, ruleset"),
        ("kernel", "import nftables, os\nfrom nftproxy.ruleset import Transaction"),
        ("kernel", "from nftproxy import metrics"),
        ("documents", "import yaml\nopen('x')"),
        ("cli", "from nftproxy import __version__, agent"),
        ("lab", "from nftproxy.lab.frames import Packet"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    """What the tables allow is not complained of."""
    assert violations(module, source, PURE | {"kernel", "agent", "metrics"}) == []
