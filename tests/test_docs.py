"""The documentation keeps its word: the commands that it shows are run, its links lead somewhere.

A block fenced as `console` holds commands after a prompt, `$` or `#`, each followed by its output.  A line `...`
stands for any lines, `...` in a line for any text.  Each block runs in one shell, in a throw-away network namespace and
a directory with nothing but the examples and the templates.
"""

from __future__ import annotations

import importlib
import operator
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml
from nftproxy_conformance.lab import obstacle

from nftproxy.api.kinds import ObjectKind
from nftproxy.api.parse import parse_object
from nftproxy.api.resources import resources
from nftproxy.commands import cli
from nftproxy.config.flags import FLAGS, OTHER_FLAGS
from nftproxy.config.unused_fields import UNUSED
from nftproxy.extensions.counts.agent import service_counts
from nftproxy.installed import OPTIONS
from nftproxy.installed_fields import FIELDS
from nftproxy.model.annotations import NONE, Form, Word
from nftproxy.model.errors import Problem
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.sources.config_documents import load_config
from tests.support.metrics import COUNTERS, GAUGES, HISTOGRAMS

CHECKOUT = Path(__file__).resolve().parents[1]
README = CHECKOUT / "README.md"
CONTRIBUTING = (CHECKOUT / "CONTRIBUTING.md").read_text()
DOCS = CHECKOUT / "docs"
INDEX = DOCS / "index.md"
DATA_PLANE = DOCS / "data-plane.md"
SEMANTICS = DOCS / "semantics.md"
FOLDERS = ("docs", "examples", "tests", "conformance", ".github")
WITHOUT_EFFECT = [path for path, row in UNUSED.items() if not row.used_in]
"""The fields of kube-proxy's configuration that nftproxy uses in no mode."""
PAGES = sorted([*CHECKOUT.glob("*.md"), *(page for each in FOLDERS for page in (CHECKOUT / each).rglob("*.md"))])

by_path = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))

OWN_RUN = "mkdir -p /run/nftproxy && mount -t tmpfs none /run/nftproxy\n"
"""Lets an agent have its default socket, even if another agent on this machine has one."""

LONG_COMMANDS = ("nftproxy conformance", "nftproxy cleanup", "nftproxy doctor", "nft list tables")
"""Blocks with one of these are slow: they judge a template, or stand for a node that is migrated."""
NOT_RUN_HERE = ("make ", ".venv/bin/tox ", ".venv/bin/python -m pytest ")
"""Commands that run the tests, or the whole of the setup, so that they would run this test again."""

needs_root = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


class Command(NamedTuple):
    """A command as a page shows it, and the lines that it shows of the output, if any."""

    text: str
    shown: tuple[str, ...]


def fenced(page: Path, language: str) -> list[str]:
    """The contents of a page's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[Command]:
    """The commands in a console block.  A `#` that is no prompt begins a comment, and so no line of a result."""
    found: list[Command] = []
    for line in block.splitlines():
        if prompt := re.match(r"[$#] (?=[a-z./])(?!nftproxy: )", line):
            found.append(Command(line[prompt.end() :], ()))
        else:
            found[-1] = found[-1]._replace(shown=(*found[-1].shown, line))
    return found


BLOCKS = [(page, commands(block)) for page in PAGES for block in fenced(page, "console")]
NAMED = {command.text for _, block in BLOCKS for command in block if command.text.startswith(NOT_RUN_HERE)}
RUN_HERE = [
    pytest.param(
        block,
        id=f"{page.name}: {block[-1].text.partition(' --')[0]}",
        marks=[pytest.mark.slow] * any(command.text.startswith(LONG_COMMANDS) for command in block),
    )
    for page, block in BLOCKS
    if NAMED.isdisjoint(command.text for command in block)
]


def pattern(shown: tuple[str, ...]) -> str:
    """A regular expression for the output that these lines show."""
    parts = [
        r"(?:.*\n)*?" if line.strip() == "..." else ".*".join(map(re.escape, line.strip().split("..."))) + r"\n"
        for line in shown
    ]
    return "".join(parts)


def run(block: list[Command], directory: Path) -> list[tuple[int, str]]:
    """Each command's exit status and output (indentation left out), of a block that is run in a directory."""
    mark = "---- the end of a command ----"
    script = "".join(f"{{ {command.text}\n}} 2>&1; echo '{mark}' $?\n" for command in block)
    done = subprocess.run(
        ["unshare", "--net", "--mount", "bash", "-c", f"{OWN_RUN}{script}"],
        cwd=directory,
        env=os.environ | {"PATH": f"{directory}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = re.findall(rf"(.*?)^{mark} (\d+)\n", done.stdout, re.MULTILINE | re.DOTALL)
    return [(int(status), re.sub(r"^[ \t]+", "", output, flags=re.MULTILINE)) for output, status in found]


ONCE_LOADED = """#!/bin/sh
shift
"$@" >timeout.out 2>&1 &
until grep -q "loaded the rules" timeout.out || ! kill -0 $! 2>/dev/null; do sleep 0.1; done
kill $! 2>/dev/null
wait $!
cat timeout.out
exit 124
"""
"""Stands for `timeout`: it ends an agent that has loaded its rules.  On a busy machine that takes more than 10 s."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory as a page's commands expect it, where `nftproxy` is the code under test, for Python too."""
    for name in ("examples", "templates"):
        shutil.copytree(CHECKOUT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    python = f'#!/bin/sh\nPYTHONPATH="{CHECKOUT}" exec "{sys.executable}"'
    for name, text in (
        ("nftproxy", f'{python} -m nftproxy "$@"\n'),
        ("python3", f'{python} "$@"\n'),
        ("timeout", ONCE_LOADED),
    ):
        script = tmp_path / "bin" / name
        script.write_text(text)
        script.chmod(0o755)
    return tmp_path


@needs_root
@pytest.mark.parametrize("block", RUN_HERE)
def test_commands_print_what_is_shown(block: list[Command], directory: Path) -> None:
    """Each command prints the lines below it.  A command with nothing below it succeeds."""
    for command, (status, output) in zip(block, run(block, directory), strict=True):
        if command.shown:
            assert re.fullmatch(pattern(command.shown), output), f"{command.text}\n{output}"
        else:
            assert status == 0, f"{command.text}\n{output}"


@pytest.mark.parametrize("text", sorted(NAMED))
def test_commands_that_are_not_run_here_exist(text: str) -> None:
    """A command that would run these tests is a target of the Makefile, an environment of tox, or names other tests."""
    name = text.split()[-1]
    if " -m pytest " in text:
        assert all((CHECKOUT / path).exists() for path in text.partition(" -m pytest ")[2].split())
    elif text.startswith("make "):
        assert re.search(rf"^{name}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    else:
        assert f"[testenv:{name}]" in (CHECKOUT / "tox.ini").read_text()


def test_python_prints_what_is_shown(directory: Path) -> None:
    """The program in docs/python.md prints the lines below it."""
    (program,), (shown,) = fenced(DOCS / "python.md", "python"), fenced(DOCS / "python.md", "text")
    python = str(directory / "bin" / "python3")
    done = subprocess.run([python, "-c", program], cwd=directory, capture_output=True, text=True, check=True)
    assert done.stdout == shown


SAMPLES = [
    pytest.param(sample, id=f"{page.name}: {index}")
    for page in PAGES
    for index, block in enumerate(fenced(page, "yaml"), 1)
    for sample in [yaml.safe_load(block)]
    if sample.get("kind") == "KubeProxyConfiguration" or "annotations" in sample.get("metadata", {})
]
"""Samples of configurations and objects on the pages."""


def annotated(kind: ObjectKind, metadata: Mapping[str, Any]) -> tuple[object, list[Problem]]:
    """An object that has a sample's annotations, as the agent reads it, and the problems that it has with them."""
    problems: list[Problem] = []
    labels = {"kubernetes.io/service-name": "web"}
    spec = {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}
    endpoints = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"]}], "ports": [{"port": 80}]}
    named: dict[str, Any] = {"name": "web", "namespace": "shop", "labels": labels}
    made: dict[str, Any] = {"metadata": named | dict(metadata), "spec": spec} | endpoints
    value = parse_object(made, "", problems, kind=kind)
    if isinstance(value, Service | EndpointSlice):
        value = msgspec.structs.replace(value, faults=())  # they are no effect
    return value, problems


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_people_are_to_write_is_good(sample: dict[str, Any], tmp_path: Path) -> None:
    """A configuration is read without a warning, and annotations have an effect on a single kind of objects."""
    if "kind" in sample:
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(sample))
        config, warnings = load_config(path, FIELDS)
        assert not warnings
        assert config != load_config(None, FIELDS)[0]
        return
    kinds = [each.kind for each in resources("node-a", options=OPTIONS)]
    (kind,) = (kind for kind in kinds if annotated(kind, sample["metadata"])[0] != annotated(kind, {})[0])
    assert annotated(kind, sample["metadata"])[1] == []


def test_ci_runs_the_tests_as_the_readme_does() -> None:
    """CI runs the commands of README.md."""
    assert {"make demo", "make test"} <= {command.text for page, block in BLOCKS if page == README for command in block}
    assert "part make test" in (CHECKOUT / ".ci" / "run").read_text()


def test_packages_to_install_are_those_that_setup_needs() -> None:
    """Every package that a page names to apt is in .ci/setup, too."""
    texts = "".join(page.read_text() for page in PAGES)
    packages = {word for line in re.findall(r"apt-get install ([-a-z0-9 ]+)", texts) for word in line.split()}
    needed = set(re.findall(r"^need ([-a-z0-9]+)", (CHECKOUT / ".ci" / "setup").read_text(), re.MULTILINE))
    assert packages
    assert packages <= needed


LINK = re.compile(r"\]\((?!https://)([^)\s#]*)(?:#([^)\s]*))?\)")
"""A link within the project."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^-\w ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_path
def test_links_lead_somewhere(page: Path) -> None:
    """Every link within the project names an existing file, and an existing heading if it has an anchor."""
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@by_path
def test_tables_begin_and_end(page: Path) -> None:
    """Each table has a header, and an empty line after it: the site takes a line that follows for a row."""
    text = re.sub(r"^( *)(```+).*?^\1\2", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for table in re.finditer(r"(?:^ *\|.*\n)+(.*)", text, re.MULTILINE):
        assert re.search(r"\A.*\n *\|(?: -+ \|)+\n", table[0]), table[0]
        assert not table[1] or table[1].startswith("<!-- end: "), table[1]


@by_path
def test_every_page_is_in_the_index(page: Path) -> None:
    """docs/index.md leads to every page, and docs/decisions/index.md to every decision."""
    indexes = (INDEX, DOCS / "decisions" / "index.md")
    linked = {(index.parent / path).resolve() for index in indexes for path, _ in LINK.findall(index.read_text())}
    assert page in linked | {INDEX}


NOT_OUR_WORDS = {
    r"\btold\b": "log, report, notify or pass",
    r"\bless (?:what|those|the|that)\b": "except",
    r"\bdear(?:er|est)\b": "expensive",
    r"\bset aside\b": "quarantine",
    r"\brefus(?:e|es|ed) (?:connections?|packets?)\b": "reject",
}
"""Phrases that the pages must not use, each with this project's word for it: a thing has a single word."""


@by_path
def test_words_are_those_of_the_glossary(page: Path) -> None:
    """No page has a second word for a term of the glossary or the field."""
    text = page.read_text()
    assert not {word: better for word, better in NOT_OUR_WORDS.items() if re.search(word, text, re.IGNORECASE)}


def test_words_of_the_code_are_those_of_the_glossary() -> None:
    """No name, docstring, comment or message of the package has such a second word either."""
    sources = [*(CHECKOUT / "nftproxy").rglob("*.py"), *(CHECKOUT / "templates").rglob("*.j2")]
    found = [
        (str(path.relative_to(CHECKOUT)), word, better)
        for path in sources
        for word, better in NOT_OUR_WORDS.items()
        if re.search(word, path.read_text(), re.IGNORECASE)
    ]
    assert not found


@by_path
def test_modules_that_a_page_names_exist(page: Path) -> None:
    """A module or template that a page names in code, by its path, exists: moving a module means updating the page."""
    named = re.findall(r"`([-\w/]+\.(?:py|nft\.j2))`", page.read_text())
    places = (
        CHECKOUT,
        CHECKOUT / "nftproxy",
        CHECKOUT / "conformance" / "nftproxy_conformance",
        CHECKOUT / "templates",
    )
    assert not [name for name in named if not any((place / name).exists() for place in places)]


def test_functions_of_the_life_of_a_change_exist() -> None:
    """docs/life-of-a-change.md names functions and classes that are in the modules that it names."""
    named = re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", (DOCS / "life-of-a-change.md").read_text())
    assert named
    for path, name in named:
        module = importlib.import_module(f"nftproxy.{path.removesuffix('.py').replace('/', '.')}")
        assert operator.attrgetter(name)(module), (path, name)


@pytest.mark.parametrize("file", ["tox.ini", ".ci/run", "Makefile"])
def test_tests_that_ci_names_exist(file: str) -> None:
    """Each file and folder of tests that CI runs by its path is there."""
    named = re.findall(r"\btests/[-\w/.]+", (CHECKOUT / file).read_text().replace("/__pycache__", ""))
    assert [path for path in named if not (CHECKOUT / path).exists()] == []


def test_classes_of_the_glossary_exist() -> None:
    """Each class that the glossary names beside a word is a class of the package."""
    table = (DOCS / "architecture.md").read_text().partition("## Glossary")[2].partition("\n## ")[0]
    named = [
        name for row in re.findall(r"^\| \*\*\w+\*\* \|([^|]*)\|", table, re.MULTILINE) for name in row.split("`")[1::2]
    ]
    defined = {
        name
        for path in (CHECKOUT / "nftproxy").rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    }
    assert named
    assert set(named) <= defined


def test_each_claim_about_security_has_its_tests() -> None:
    """Every row of docs/security.md names tests, and each of these tests exists."""
    text = (DOCS / "security.md").read_text()
    heads = ("| can't | ", "| action | ", "| --- ")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(heads)]
    assert rows
    assert not [row for row in rows if "::test_" not in row]
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", text)
    assert not [each for each in named if f"def {each[1]}(" not in (CHECKOUT / "tests" / each[0]).read_text()]


def test_each_file_of_a_recipe_exists() -> None:
    """Each path that CONTRIBUTING.md names in a table is there."""
    rows = [line for line in CONTRIBUTING.splitlines() if line.startswith("| ")]
    paths = {path for row in rows for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*\.\w+)`", row)}
    assert len(paths) > 20
    places = (CHECKOUT, CHECKOUT / "conformance" / "nftproxy_conformance")
    assert {path for path in paths if not any((place / path).exists() for place in places)} == set()


def test_the_example_of_a_field_is_where_it_is_said_to_be() -> None:
    """Each place that CONTRIBUTING.md sends a reader to, for a field of the API, has the word of the example."""
    rows = re.findall(r"^\| (\d) \| .* \| `(\S+)` \| `(\S+)` \|$", CONTRIBUTING, re.MULTILINE)
    assert [number for number, _, _ in rows] == list("123456")
    assert not [(file, word) for _, file, word in rows if word not in (CHECKOUT / file).read_text()]


def test_every_folder_is_in_the_tree() -> None:
    """docs/development.md has a line for each folder of the package and of the tools."""
    tree = re.findall(r"^  (\w+)/ ", fenced(DOCS / "development.md", "")[0], re.MULTILINE)
    folders = {path.parent.name for top in ("nftproxy", "tools") for path in (CHECKOUT / top).glob("*/__init__.py")}
    assert folders <= set(tree)


def test_every_environment_of_tox_is_described() -> None:
    """docs/development.md has a row for each environment of tox, except for that of `make lint`."""
    _, _, rows = (DOCS / "development.md").read_text().partition("| environment |")
    shown = re.findall(r"^\| `([-\w]+)` \|", rows, re.MULTILINE)
    there = re.findall(r"^\[testenv:([-\w]+)\]", (CHECKOUT / "tox.ini").read_text(), re.MULTILINE)
    assert set(there) - {"lint"} == set(shown)


def test_every_command_is_described() -> None:
    """docs/cli.md has a row for each command of nftproxy, and no other."""
    described = re.findall(r"^\| `nftproxy ([a-z]+)", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert sorted(described) == sorted(cli.commands())


def test_every_option_is_described() -> None:
    """docs/cli.md names each option of each command, except flags of fields without effect."""
    text = (DOCS / "cli.md").read_text()
    unused = {f"--{flag.name}" for flag in FLAGS if flag.path in WITHOUT_EFFECT}
    options = {name for each in cli.commands().values() for option in each.params for name in option.opts} - unused
    missing = {name for name in options if name.startswith("--") and name not in text}
    assert not missing


def test_every_metric_of_our_own_is_described() -> None:
    """docs/operate.md has a row for each metric that kube-proxy doesn't have, and no other."""
    described = re.findall(r"^\| `(nftproxy_[a-z_]+)`", (DOCS / "operate.md").read_text(), re.MULTILINE)
    ours = [row.name for row in (*COUNTERS, *GAUGES, *HISTOGRAMS) if row.name.startswith("nftproxy_")]
    assert sorted(described) == sorted([*ours, *service_counts.HELP])


def test_every_set_and_map_of_the_skeleton_is_described() -> None:
    """docs/data-plane.md names every set and map that table.nft.j2 declares, except for node ports' prefix."""
    template = (CHECKOUT / "templates" / "table.nft.j2").read_text()
    names = re.findall(r"^  (?:set|map) ([-a-z]+) \{$", template, re.MULTILINE)
    text = DATA_PLANE.read_text()
    missing = [
        name
        for name in names
        if f"| `{name}`" not in text and f"| `{name.removeprefix('nodeport-')}` + twin" not in text
    ]
    assert names
    assert not missing


def test_every_deviation_that_is_referred_to_is_explained() -> None:
    """Each deviation that docs/semantics.md refers to has its row in the table, and no two have the same number."""
    rules, _, table = SEMANTICS.read_text().partition("## Deviations from kube-proxy")
    explained = re.findall(r"^\| \*\*(D\d+[a-z]?)\*\* \|", table, re.MULTILINE)
    assert set(re.findall(r"\*\*(D\d+)\*\*", rules)) <= set(explained)
    assert len(set(explained)) == len(explained)


ANNOTATION_TABLE = re.compile(r"^(\| annotation \| .*\n\| --- .*\n)(?:\|.*\n)*", re.MULTILINE)


def annotation_rows() -> Iterator[str]:
    """The rows of the table of annotations in docs/semantics.md."""
    for each in sorted(OPTIONS, key=lambda each: each.is_of_slices):
        kind, sets = "EndpointSlice" if each.is_of_slices else "Service", ", ".join(f"`{name}`" for name in each.sets)
        yield f"| `{each.annotation}` | {kind} | {values(each.form)} | {each.effect} | {sets} |"


def values(form: Form | Word) -> str:
    """The values that an annotation takes, as the page shows them."""
    if isinstance(form, Form):
        return form.value
    words = ", ".join(f"`{word.value}`" for word in form.words)
    return f"some of {words}, or `{NONE}`" if form.is_list else words


def test_the_table_of_annotations_is_what_is_declared() -> None:
    """docs/semantics.md has a row for each annotation, as it is declared.  With UPDATE_DOCS=1 the rows are written."""
    wanted = "".join(f"{row}\n" for row in annotation_rows())
    written = ANNOTATION_TABLE.sub(lambda found: found[1] + wanted, SEMANTICS.read_text())
    if os.environ.get("UPDATE_DOCS"):
        SEMANTICS.write_text(written)
    assert wanted in written
    assert SEMANTICS.read_text() == written


def test_every_field_without_effect_is_named() -> None:
    """docs/cli.md names each field of kube-proxy's that has no effect, and each such flag without a field."""
    section = (DOCS / "cli.md").read_text().partition("\n### Without effect\n")[2].partition("\n### ")[0]
    assert re.findall(r"`([^`]+)`", section) == [*WITHOUT_EFFECT, *(f"--{flag.name}" for flag in OTHER_FLAGS)]
