"""Imports point one way, with the data, and pure modules can do no I/O.

`MAY_IMPORT` lists, for each folder of the package, the folders that it may import.  `PURE_FOLDERS` and `PURE_ELSEWHERE`
list the pure modules.  `PURE_MAY_IMPORT` lists the modules from outside the package that they may import.  Each is
harmless: no clock, no network, no files, no randomness.  The source is read with `ast`, so imports inside functions are
seen too.
"""

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nftproxy

pytestmark = pytest.mark.style

PACKAGE = Path(__file__).resolve().parents[1] / "nftproxy"

MAY_IMPORT = {
    "__init__": "library",  # when somebody asks for it: see test_the_package_imports_nothing_by_itself
    "templates_dir": "",
    "model": "",
    "netlink": "",
    "version": "",
    "build": "",
    "logs": "",
    "api": "",
    "config": "api",
    "policy": "",
    "deploy": "api config",
    "rules": "policy",
    "pipeline": "policy rules",
    "explanation": "policy rules pipeline",
    "doctor": "api config",
    "sources": "api config logs netlink",
    "installed": "agent doctor extensions policy rules",
    "installed_fields": "extensions",
    "library": "api config policy rules pipeline explanation sources templates_dir installed installed_fields",
    "kernel": "policy rules logs netlink",
    "agent": "build logs api config policy rules pipeline explanation sources kernel",
    "trace": "rules explanation kernel",
    "extensions": "logs policy rules pipeline explanation doctor sources kernel agent netlink",
    "fleet": "api explanation sources agent",
    "commands": (
        "build logs api config deploy rules pipeline explanation doctor sources kernel agent trace fleet library "
        "templates_dir installed installed_fields policy"
    ),
    "__main__": "commands",
}
"""The folders that each folder, or module beside the folders, may import beside itself and `EVERYONE_MAY_IMPORT`.

Imports follow the data: each stage imports only stages upstream.  Input (`sources`) and output (`kernel`) don't import
each other, nor do the meaning of objects in the API (`api`) and the decisions about them (`policy`)."""
EVERYONE_MAY_IMPORT = frozenset({"model", "version"})

PURE_FOLDERS = frozenset(
    {"model", "netlink", "api", "config", "deploy", "policy", "rules", "pipeline", "explanation", "doctor"}
)
PURE_ELSEWHERE = frozenset(
    {
        "agent/reporting/event_series",
        "agent/reporting/health",
        "agent/reporting/occurrences",
        "agent/sync/inbox",
        "agent/sync/quarantine",
        "agent/sync/turns",
        "agent/socket/answers",
        "fleet/cluster_status",
        "fleet/inventory",
        "fleet/merged_changes",
        "fleet/merged_findings",
        "fleet/merged_rows",
        "fleet/node_answers",
        "fleet/outlooks",
    }
)
PURE_MAY_IMPORT = frozenset(
    "__future__ abc bisect collections contextlib copy dataclasses datetime enum errno functools hashlib heapq "
    "difflib ipaddress itertools math operator os.strerror re string struct textwrap traceback types typing zlib "
    "jinja2 msgspec tenacity.RetryCallState tenacity.Retrying tenacity.wait_exponential".split()
)
# Names that read something: files, the clock, and such parts of the modules above.  Only documents.py reads YAML.
PURE_MAY_NOT_CALL = frozenset(
    "open input print exec eval __import__ read_text read_bytes write_text write_bytes now utcnow today".split()
)
PURE_MAY_NOT_NAME = frozenset("FileSystemLoader PackageLoader ModuleLoader FileSystemBytecodeCache yaml toml".split())
ONLY_IMPORTER = {
    "nftables": "kernel/libnftables",
    "kr8s": "sources/cluster_api",
    "yaml": "sources/documents",
    "ruamel": "sources/documents",
    "msgspec.yaml": "sources/documents",
    "nftproxy_conformance": "",
}
"""The only module, or folder, that may import each third-party package.  Code on nodes never imports the judge."""
# The modules that the judge's specification may import beside its own: values, and the lab's names for outcomes.
ORACLE_MAY_IMPORT = frozenset(
    {
        "nftproxy.extensions.algorithms.annotations",
        "nftproxy.extensions.algorithms.fields",
        "nftproxy.extensions.client_limits.annotations",
        "nftproxy.extensions.external_addresses.fields",
        "nftproxy.extensions.failover.annotations",
        "nftproxy.extensions.failover.fields",
        "nftproxy.model.addresses",
        "nftproxy.model.annotations",
        "nftproxy.model.settings",
        "nftproxy.model.objects",
        "nftproxy_conformance.lab.outcome",
        "nftproxy_conformance.lab.topology",
    }
)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import.  `from a import b` is a.b, as b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = f"{'nftproxy.' if node.level else ''}{node.module or ''}".rstrip(".")
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each use of a name that the two lists above forbid."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in PURE_MAY_NOT_CALL:
                yield node.lineno, name
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in PURE_MAY_NOT_NAME:
                yield node.lineno, name
            case ast.ImportFrom(names=aliases):
                yield from ((node.lineno, a.name) for a in aliases if a.name in PURE_MAY_NOT_NAME)


def folder_of(module: str) -> str:
    """Return the row of `MAY_IMPORT` for a module, given as its path in the package without the suffix."""
    return module.split("/")[0]


def is_pure(module: str) -> bool:
    """True if a module may do no I/O: in an extension's folder, all but its part of the agent."""
    if folder_of(module) == "extensions":
        return "/agent/" not in module
    return folder_of(module) in PURE_FOLDERS or module in PURE_ELSEWHERE


def inner_violation(module: str, name: str) -> str | None:
    """Return the fault if `module` imports `name`, which is `nftproxy` or below it."""
    parts = name.split(".")[1:]
    folder, target = folder_of(module), parts[0] if parts and parts[0] in MAY_IMPORT else "__init__"
    if target not in {folder, *EVERYONE_MAY_IMPORT, *MAY_IMPORT[folder].split()}:
        return f"imports nftproxy.{target}, which isn't upstream of {folder}"
    paths = {"/".join(parts[:length]) for length in range(1, len(parts) + 1)}
    if is_pure(module) and not (target in PURE_FOLDERS | EVERYONE_MAY_IMPORT or any(map(is_pure, paths))):
        return f"imports nftproxy.{target}, which isn't pure; {module} is"
    return None


def outer_violation(module: str, name: str) -> str | None:
    """Return the fault if `module` imports `name`, which is outside of this project."""
    for prefix, importers in ONLY_IMPORTER.items():
        if f"{name}.".startswith(f"{prefix}.") and not f"{module}/".startswith(
            tuple(f"{i}/" for i in importers.split())
        ):
            return f"imports {name}, which {f'only {importers}' if importers else 'nobody'} may"
    if is_pure(module) and not {name, name.split(".")[0]} & PURE_MAY_IMPORT:
        return f"imports {name}; {module} is pure and that isn't on its list"
    return None


def violations(module: str, source: str) -> list[str]:
    """Return a line for each thing in a module's source text that breaks the tables above.

    Args:
        module: its path in the package, without the suffix.
        source: its text.
    """
    tree = ast.parse(source)
    found = []
    for line, name in imports(tree):
        ours = name.split(".")[0] == "nftproxy"
        wrong = inner_violation(module, name) if ours else outer_violation(module, name)
        if wrong:
            found.append(f"nftproxy/{module}.py:{line}: {wrong}")
    if is_pure(module):
        found += [
            f"nftproxy/{module}.py:{line}: uses {name}; {module} is pure and may read nothing"
            for line, name in reads(tree)
        ]
    return list(dict.fromkeys(found))  # once, however many names come from one module


def module_of(path: Path) -> str:
    """Return the path of a module in the package, without the suffix."""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def test_imports_follow_the_data() -> None:
    """Every module of the package keeps to the tables."""
    found = [line for path in sorted(PACKAGE.rglob("*.py")) for line in violations(module_of(path), path.read_text())]
    assert not found, "\n" + "\n".join(found)


@functools.cache
def sources() -> dict[str, ast.Module]:
    """The modules of the package by path, parsed once."""
    return {module_of(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def test_no_row_allows_more_than_is_imported() -> None:
    """An import that is allowed and that no module makes is an entry too many."""
    made = {
        (folder_of(module), target)
        for module, tree in sources().items()
        for _, name in imports(tree)
        for target in name.split(".")[1:2]
    }
    allowed = {(folder, target) for folder, row in MAY_IMPORT.items() for target in row.split()}
    assert allowed - made == set()


def test_no_module_leads_back_to_itself() -> None:
    """The modules of the package form no circle, inside a folder neither."""
    names = {f"nftproxy.{module.replace('/', '.')}".removesuffix(".__init__"): module for module in sources()}
    imported = {
        names[own]: {
            names[prefix]
            for _, name in imports(sources()[names[own]])
            for prefix in (name, name.rpartition(".")[0])
            if prefix in names and prefix not in (own, "nftproxy")
        }
        for own in names
    }
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError, which names the modules


OF_EXTENSIONS = {"annotations", "codes", "feature", "fields", "rules", "words", "part"}
"""The modules of an extension that have the same name in each: its annotations (model/annotations.py has their type),
its codes (model/codes.py), its value, its fields of the configuration (model/config_fields.py), its share of the rules,
its words, and its part of the agent."""


def test_each_module_name_has_one_meaning() -> None:
    """No two modules of the package have the same name, so that a name without its folder is enough."""
    names = [module.rpartition("/")[2] for module in sources()]
    assert {name for name in names if names.count(name) > 1} <= {"__init__", *OF_EXTENSIONS}


def test_each_class_name_has_one_meaning() -> None:
    """No two classes of the package have the same name, so that a search finds the right class."""
    places: dict[str, list[str]] = {}
    for module, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", ["LOCATION", "PIECE", "PLACE", "PLACES", "SILENCE"])
def test_a_word_for_many_things_is_a_constant_of_one_module(name: str) -> None:
    """Each of these names is a constant of one module at most.  Other modules have a name that says more."""
    of_modules = [module for module, tree in sources().items() if name in constants(tree)]
    assert len(of_modules) <= 1, of_modules


def constants(tree: ast.Module) -> set[str]:
    """The names that a module gives a value, without underscores before them."""
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return {name.lstrip("_") for name in names}


def test_the_tables_name_what_is_there() -> None:
    """Each folder, and each module beside the folders, has its row, and every row has its folder or module."""
    present = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(MAY_IMPORT) == present
    assert [name for name in PURE_ELSEWHERE if not (PACKAGE / f"{name}.py").exists()] == []
    assert {name for row in MAY_IMPORT.values() for name in row.split()} <= present


def test_the_package_imports_nothing_by_itself() -> None:
    """`import nftproxy`, which the import of any module runs, loads nothing else.  `nftproxy.render` loads the rest."""
    code = (
        "import sys; before = set(sys.modules); import nftproxy; own = set(sys.modules) - before; "
        "assert own == {'nftproxy', 'nftproxy.version'}, own; "
        "from nftproxy import explain, render; assert 'nftproxy.library' in sys.modules; "
        "assert nftproxy.explain is explain and callable(render)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


RARE = (
    "aiohttp multidict yarl pyroute2 sqlite3 unittest hypothesis trustme multiprocessing "
    "cryptography.hazmat jsonpath.env wsproto importlib.metadata "
    "nftproxy_conformance nftproxy.deploy nftproxy.doctor nftproxy.fleet nftproxy.trace "
    "nftproxy.kernel.ruleset_check nftproxy.kernel.others.ipvs nftproxy.commands.kube_proxy_cleanup"
).split()
"""Modules that some commands or the lab need, and the agent never does.  Together they are larger than the agent."""
DURING_THE_PROBE = "httpx jinja2 kr8s nftproxy.pipeline prometheus_client".split()
"""Modules that the agent imports only while a child process probes libnftables: more than half of the imports."""
FOR_QUESTIONS = "nftproxy.agent.socket.queries nftproxy.explanation.words difflib".split()
"""Modules that an agent needs for the first question at its socket, with a tenth of its modules."""
BROUGHT_ALONG = "html.entities pygments.lexers._mapping socksio.socks5".split()
"""Modules that libraries would import for features that an agent doesn't use, where they are installed."""


def test_an_agent_imports_nothing_that_it_never_needs() -> None:
    """`nftproxy run` imports no rarely used module, which would stay in memory to the end, and large modules late."""
    code = (
        "import sys; sys.argv = ['nftproxy', 'run', '--version']\n"
        "from nftproxy.commands.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules)\n"
        "import nftproxy.agent.daemon, nftproxy.installed; nftproxy.installed.agent_extensions()\n"
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent, capture_output=True, text=True)
    _version, early, late = map(set, map(str.split, ran.stdout.splitlines()))
    assert {"nftproxy.agent.daemon", "nftproxy.commands.run", *DURING_THE_PROBE} <= late
    assert late & {*RARE, *FOR_QUESTIONS, *BROUGHT_ALONG} == set()
    assert early & set(DURING_THE_PROBE) == set()


def test_the_package_names_what_it_has() -> None:
    """The package has each name in its `__all__`, and no other public name."""
    assert [name for name in nftproxy.__all__ if not hasattr(nftproxy, name)] == []
    with pytest.raises(AttributeError, match="has no attribute 'reconcile'"):
        nftproxy.reconcile  # noqa: B018


def test_no_two_folders_know_each_other() -> None:
    """The folders form no circle: following the rows, each comes to an end."""
    seen: dict[str, set[str]] = {}

    def upstream(folder: str, trail: tuple[str, ...] = ()) -> set[str]:
        assert folder not in trail, f"a circle: {' -> '.join((*trail, folder))}"
        if folder not in seen:
            seen[folder] = set().union(*({n} | upstream(n, (*trail, folder)) for n in MAY_IMPORT[folder].split()))
        return seen[folder]

    assert not {"api", "sources"} & upstream("kernel")
    assert not {"policy", "rules", "kernel"} & upstream("sources")
    assert {"sources", "kernel"} < upstream("agent")


def oracle_violations(source: str) -> list[str]:
    """Return a line for each import in a source text that would show the oracle the code that it judges."""
    own = {".".join(name.split(".")[:-1]) for _, name in imports(ast.parse(source)) if name.startswith("nftproxy")}
    strange = {name for name in own - ORACLE_MAY_IMPORT if not name.startswith("nftproxy_conformance.specification.")}
    return [f"{name} is no value and no word of the lab's" for name in sorted(strange)]


def test_the_oracle_shares_nothing_with_what_it_judges() -> None:
    """The judge's specification imports values, the configuration and the lab's outcomes, and reads nothing."""
    for path in sorted((PACKAGE.parent / "conformance" / "nftproxy_conformance" / "specification").glob("*.py")):
        source = path.read_text()
        assert oracle_violations(source) == [], path
        assert list(reads(ast.parse(source))) == [], path


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("from nftproxy.claims import Claims", "nftproxy.claims is"),
        ("from nftproxy_conformance.lab import Lab", "nftproxy_conformance.lab is"),
        ("def f():\n    from nftproxy.endpoints import choose", "nftproxy.endpoints is"),
    ],
)
def test_an_oracle_that_knows_too_much_is_named(source: str, complaint: str) -> None:
    """An import of code that computes rules, or of the lab itself, is found."""
    (found,) = oracle_violations(source)
    assert found.startswith(complaint)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        (
            "model/errors",
            "from nftproxy.policy.state import A",
            "imports nftproxy.policy, which isn't upstream of model",
        ),
        ("model/errors", "from ..policy.state import A", "imports nftproxy.policy, which isn't upstream of model"),
        (
            "config/parse_config",
            "from nftproxy.policy import state",
            "imports nftproxy.policy, which isn't upstream of config",
        ),
        ("policy/state", "import nftproxy.kernel", "imports nftproxy.kernel, which isn't upstream of policy"),
        (
            "kernel/child_process",
            "import nftproxy.agent.loop",
            "imports nftproxy.agent, which isn't upstream of kernel",
        ),
        ("kernel/sysctl", "from nftproxy.sources import files", "imports nftproxy.sources, which isn't upstream"),
        ("agent/sync/quarantine", "import nftproxy.kernel.child_process", "imports nftproxy.kernel, which isn't pure"),
        ("policy/compile", "def f():\n    import time", "imports time; policy/compile is pure"),
        ("model/objects", "from pathlib import Path", "imports pathlib.Path; model/objects is pure"),
        ("model/objects", "import os.path as p", "imports os.path; model/objects is pure"),
        ("rules/renderer", "from jinja2 import FileSystemLoader", "uses FileSystemLoader; rules/renderer is pure"),
        ("rules/renderer", "import jinja2\njinja2.PackageLoader('x')", "uses PackageLoader; rules/renderer is pure"),
        ("config/parse_config", "import msgspec\nmsgspec.yaml.decode(b'')", "uses yaml; config/parse_config is pure"),
        ("config/parse_config", "open('/etc/x')", "uses open; config/parse_config is pure"),
        ("rules/renderer", "def f(p):\n    return p.read_text()", "uses read_text; rules/renderer is pure"),
        ("policy/state", "import datetime as d\nd.datetime.now()", "uses now; policy/state is pure"),
        ("agent/loop", "from nftables import Nftables", "imports nftables.Nftables, which only kernel/libnftables may"),
        ("sources/files", "import kr8s.asyncio", "imports kr8s.asyncio, which only sources/cluster_api may"),
        ("commands/cli", "import yaml", "imports yaml, which only sources/documents may"),
        ("trace/scene", "from nftproxy_conformance import lab", "imports nftproxy_conformance.lab, which nobody may"),
    ],
)
def test_a_violation_is_named(module: str, source: str, complaint: str) -> None:
    """Each kind of forbidden import or use is found, once, with the module, the line and the import."""
    line = source.count("\n") + 1
    found = violations(module, source)
    assert [text for text in found if text.startswith(f"nftproxy/{module}.py:{line}: {complaint}")] == found
    assert len(found) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("model/objects", "import msgspec\nfrom nftproxy.model.errors import BadInput"),
        ("policy/state", "def expired(at: float, now: float) -> bool:\n    return at < now"),
        ("netlink/codec", "import struct\nfrom os import strerror"),
        ("rules/renderer", "from jinja2 import DictLoader\nfrom nftproxy.policy import compile"),
        ("kernel/libnftables", "import nftables, os\nfrom nftproxy.rules.transaction import Transaction"),
        ("agent/loop", "from nftproxy.kernel import sysctl"),
        ("agent/sync/quarantine", "from nftproxy.pipeline import Pipeline"),
        ("sources/documents", "import yaml\nopen('x')"),
        ("commands/cli", "from nftproxy.version import __version__\nfrom nftproxy.agent import loop"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    """An import that the tables allow is no violation."""
    assert violations(module, source) == []
