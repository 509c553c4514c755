"""Without an extension the rest of the proxy is the same: its folder, its templates and its place in the list are all.

Each extension is taken away in a copy of the tree.  No module outside of its folder imports it, other than the list.

NFTPROXY_TESTS=long takes away each extension by itself, too, and runs mypy.  The demo is slow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nftproxy_conformance.lab import obstacle

from tests.support.examples import CHECKOUT, EXAMPLES, NODE, example_pipeline
from tests.support.factories import IPV4, IPV6
from tests.support.goldens import expected

EXTENSIONS = sorted(path.parent.name for path in (CHECKOUT / "nftproxy" / "extensions").glob("*/__init__.py"))
STRATEGIES = Path("conformance") / "nftproxy_conformance" / "strategies" / "extensions"
LISTS = (Path("nftproxy") / "installed.py", Path("nftproxy") / "installed_fields.py", STRATEGIES / "installed.py")
ROOMS = ("api", "model", "policy", "rules", "test_pipeline.py")
"""The tests of the proxy's rooms that decide about rules."""
IS_LONG = os.environ.get("NFTPROXY_TESTS") == "long"
ALL = "all"

RENDER_ALL = """
import contextlib, io, json, sys
from nftproxy.commands.cli import main
texts = {}
for example in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        options = ["--node", "NODE", "--config", f"examples/{example}/config.yaml", "--ipv6-affinity", "hash"]
        sys.argv = ["nftproxy", "render", f"examples/{example}/manifests", *options]
        with contextlib.suppress(SystemExit):
            main()
    texts[example] = out.getvalue()
print(json.dumps(texts))
""".replace("NODE", NODE)


def is_used(example: str, extension: str) -> bool:
    """Whether the configuration or a Service of an example asks for an extension."""
    made = example_pipeline(example)
    state, settings = made.state, made.settings
    return any(
        each.whole_table(settings.config) is not None
        or any(each.table(state, settings, family) is not None for family in (IPV4, IPV6))
        or any(each in settings.extensions_of(service) for service in state.services.values())
        for each in settings.extensions
        if each.name == extension
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with its templates, its tests and tools."""
    copy = tmp_path_factory.mktemp("tree")
    (copy / "away").mkdir()
    for name in ("nftproxy", "templates", "conformance", "tests", "tools"):
        shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "examples"):
        (copy / name).symlink_to(CHECKOUT / name)
    return copy


@contextmanager
def without(tree: Path, extensions: list[str]) -> Iterator[None]:
    """Take extensions away for a while: their folders, their templates, their tests, and their lines in the lists."""
    texts = {path: (tree / path).read_text() for path in LISTS}
    parents = [tree / name / "extensions" for name in ("nftproxy", "templates", "tests")]
    moved = [path / each for each in extensions for path in parents]
    moved = [path for path in (*moved, *(tree / STRATEGIES / f"{each}.py" for each in extensions)) if path.exists()]
    away = {path: tree / "away" / str(number) for number, path in enumerate(moved)}
    for path, text in texts.items():
        (tree / path).write_text(_less(text, extensions))
    for path, there in away.items():
        path.rename(there)
    try:
        yield
    finally:
        for path, there in away.items():
            there.rename(path)
        for path, text in texts.items():
            (tree / path).write_text(text)


def _less(text: str, extensions: list[str]) -> str:
    """A list of extensions without some of them."""
    for extension in extensions:
        for line in re.findall(rf"^ *from [\w.]+\.extensions\.{extension}\b.*\n", text, re.MULTILINE):
            text = text.replace(line, "")
            for name in line.partition(" import ")[2].strip().split(", "):
                text = re.sub(rf"\b{name}(\.make)?\b,?\s*", "", text)
    return text


def chosen(given: str) -> list[str]:
    """The extensions to take away."""
    return EXTENSIONS if given == ALL else [given]


@pytest.mark.skipif(not IS_LONG, reason="NFTPROXY_TESTS=long")
@pytest.mark.parametrize("given", [*EXTENSIONS, ALL])
def test_other_examples_render_to_the_same_bytes(given: str, tree: Path) -> None:
    """Without an extension `render` writes the same bytes for each example that doesn't use it."""
    gone = chosen(given)
    examples = [name for name in EXAMPLES if not any(is_used(name, each) for each in gone)]
    assert examples
    with without(tree, gone):
        command = [sys.executable, "-c", RENDER_ALL, *examples]
        environment = os.environ | {"PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    texts = json.loads(done.stdout)
    assert [name for name in examples if texts[name] != expected(name)] == []


@pytest.mark.skipif(not IS_LONG, reason="NFTPROXY_TESTS=long")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("given", [*EXTENSIONS, ALL])
def test_types_are_right_without_it(given: str, tree: Path) -> None:
    """Without an extension mypy finds no error in the package."""
    pytest.importorskip("mypy")
    with without(tree, chosen(given)):
        command = [sys.executable, "-m", "mypy", "nftproxy"]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_the_demo_keeps_its_promises_without_extensions(tree: Path) -> None:
    """Without extensions the agent runs, and `make demo` keeps all promises."""
    with without(tree, EXTENSIONS):
        environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'conformance'}"}
        command = [sys.executable, "-m", "tools.demo"]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.endswith("All promises were kept.\n")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tests_of_the_rooms_need_no_extension(tree: Path) -> None:
    """Without extensions each module of tests for api, model, policy, rules and the pipeline can be imported."""
    with without(tree, EXTENSIONS):
        environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'conformance'}"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only"]
        command += [f"tests/{room}" for room in ROOMS]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/policy/test_state.py::test_a_service_touches_itself\n" in done.stdout
