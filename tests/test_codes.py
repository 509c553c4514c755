"""Each warning and each Event names a code, and each code is used, explained, and has its number for good.

The source is read with `ast`, so that a warning that no test causes is seen too.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from nftproxy.agent.reporting.occurrences import Occurrence
from nftproxy.commands.articles import WIDTH, articles, explained, overview, page
from nftproxy.commands.cli import commands
from nftproxy.extensions.localhost.codes import LocalhostCode
from nftproxy.installed import CODES
from nftproxy.model.codes import Code
from nftproxy.model.errors import NftproxyError, Problem
from tests.support.command import nftproxy
from tests.support.metrics import COUNTERS, GAUGES

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "nftproxy"
JUDGE = CHECKOUT / "conformance" / "nftproxy_conformance"
PAGE = CHECKOUT / "docs" / "codes.md"
NUMBERS = CHECKOUT / "tests/model/codes.txt"

LEVELS = frozenset({"warning", "error", "exception", "critical", "log"})
"""The methods of a logger that may write a line at WARNING or above.  `log` takes the level as a value."""
FOR_PEOPLE = ("warning: ", "error: ")
"""Prefixes of messages to standard error that are no log lines."""

TOOLS = frozenset("cat conntrack curl ip kubectl nft ps ss sysctl zgrep".split())
"""Programs that a node or its operator has, for the commands that check."""


@functools.cache
def sources() -> dict[str, ast.Module]:
    """The modules of both packages by path, parsed once."""
    return {
        str(path.relative_to(CHECKOUT)): ast.parse(path.read_text())
        for folder in (PACKAGE, JUDGE)
        for path in sorted(folder.rglob("*.py"))
    }


def is_warning(call: ast.Call) -> bool:
    """Whether a call to a logger may write a line at WARNING or above, which is for `warn` and `warn_of` (logs.py)."""
    match call.func:
        case ast.Attribute(value=ast.Name(id=name), attr=method):
            return method in LEVELS and (name == "logging" or name.endswith("log"))
    return False


def is_said_without_code(call: ast.Call) -> bool:
    """Whether a call writes "warning: ..." or "error: ..." for people, and no code in it."""
    texts = [argument for argument in call.args if isinstance(argument, ast.JoinedStr | ast.Constant)]
    first = [piece for text in texts for piece in (text.values if isinstance(text, ast.JoinedStr) else [text])][:1]
    begins = [str(piece.value) for piece in first if isinstance(piece, ast.Constant)]
    if not any(text.startswith(FOR_PEOPLE) for text in begins):
        return False
    names = {node.attr for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Attribute)}
    return not names & {"code", "coded"}


def without_code(tree: ast.AST) -> Iterator[int]:
    """The lines of a module that warn without a code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (is_warning(node) or is_said_without_code(node)):
            yield node.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('log.warning("a")', [1]),
        ('log.error("a", {"code": 1})', [1]),
        ('log.log(level, "a", extra={"level": 1})', [1]),
        ('log.warning("a", extra={"code": Code.DEFECT})', [1]),
        ('logging.warning("a")', [1]),
        ('click.echo(f"error: {problem}", err=True)', [1]),
        ('click.echo("warning: no", err=True)', [1]),
        ('x = 1\nhttp_log.exception("a")', [2]),
        ('log.info("a")', []),
        ('warn(Code.DEFECT, "a")', []),
        ('click.echo(f"error: {problem.coded}", err=True)', []),
        ('click.echo(f"{a}: error: b")', []),
    ],
)
def test_what_warns_without_a_code_is_found(source: str, lines: list[int]) -> None:
    """The check below sees every way to warn, and nothing else."""
    assert list(without_code(ast.parse(source))) == lines


@pytest.mark.style
def test_every_warning_has_a_code() -> None:
    """No warning or error is logged, or written to standard error, without a code."""
    trees = [(path, tree) for path, tree in sources().items() if path != "nftproxy/logs.py"]
    found = [f"{path}:{line}" for path, tree in trees for line in without_code(tree)]
    assert found == []


def test_nothing_reported_goes_without_a_code() -> None:
    """A fault of the input, an Event and an error of ours can't be made without a code."""
    assert not {"code"} - set(Problem.__struct_fields__)
    assert not Problem.__struct_defaults__
    assert "code" in Occurrence._fields
    assert "code" not in Occurrence._field_defaults
    assert isinstance(NftproxyError.code, Code)


@pytest.mark.style
def test_every_code_is_used() -> None:
    """A code that nothing reports any more is taken out."""
    used = {
        f"{node.value.id}.{node.attr}"
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert {f"{type(code).__name__}.{code.name}" for code in CODES} - used == set()


def test_a_number_has_one_meaning_for_good() -> None:
    """No two codes share a number, a known code keeps its number, and a removed code's number isn't used again."""
    known = dict(line.split() for line in NUMBERS.read_text().splitlines())
    assert len(set(CODES)) == len(CODES)
    assert all(len(kind.__members__) == len(kind) for kind in {type(code) for code in CODES})
    assert all(re.fullmatch(r"NFT[0-6][0-9]{2}", code) for code in CODES)
    assert {code.value: known.get(code.value) for code in CODES} == {code.value: code.name for code in CODES}
    assert [code.value for code in CODES] == sorted(code.value for code in CODES)


def test_every_code_is_explained() -> None:
    """Every article is of a code, and every code has an article, in sentences and with a command to try."""
    assert list(articles()) == list(CODES)
    for code, article in articles().items():
        assert not code.summary.endswith("."), code
        for text in filter(None, (article.means, article.shows, article.do)):
            assert re.fullmatch(r".{8,}[.]", text), (code, text)
        assert all((article.shows, article.do, article.check)), code


def test_what_articles_name_exists() -> None:
    """Codes, metrics, reasons of Events, documents and commands that an article names are there."""
    texts = {code: " ".join([each.means, each.shows, each.do, *each.check]) for code, each in articles().items()}
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    metrics = {row.header[0] for row in (*COUNTERS, *GAUGES)}
    for code, text in texts.items():
        assert set(re.findall(r"NFT\d{3}", text)) <= set(CODES), code
        assert set(re.findall(r"\b(?:nftproxy|kubeproxy)_[a-z_]+", text)) <= metrics, code
        assert all(f'"{reason}"' in sources for reason in re.findall(r"\(`([A-Z]\w+)`\)", text)), code
        assert all((CHECKOUT / path).exists() for path in re.findall(r"\b(?:docs|examples)/[\w./]*\w", text)), code


@pytest.mark.parametrize("command", sorted({it for each in articles().values() for it in each.check}))
def test_commands_that_check_exist(command: str) -> None:
    """Each command is nftproxy's, with existing options, or a tool of a node's operator."""
    program, *words = shlex.split(command)
    if program != "nftproxy":
        assert program in TOOLS
        return
    found = commands()[words[0]]
    known = {name for parameter in found.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_articles_for_a_terminal_and_for_a_page() -> None:
    """A terminal gets the whole article, within its width except for commands, the page only summary and remedy."""
    article = articles()[LocalhostCode.LOCALHOST_FULL]
    text = explained(LocalhostCode.LOCALHOST_FULL)
    assert text.startswith("NFT012: New connections at localhost are reset, as there are too many\n\nWhat it means: ")
    assert [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith("  ")] == []
    for each in (article.means, article.shows, article.do, *article.check):
        assert " ".join(each.split()) in " ".join(text.split())
    on_page = " ".join(page().split())
    assert f"**{LocalhostCode.LOCALHOST_FULL.summary}.** {article.do}" in on_page
    assert article.means not in on_page
    assert "What it means" not in explained(Code.STARTING)
    assert overview().splitlines()[0] == "NFT001  nftproxy is starting"
    assert len(overview().splitlines()) == len(CODES)


@pytest.mark.parametrize(
    ("to", "status", "begins"),
    [
        ("NFT012", 0, "NFT012: New connections at localhost are reset"),
        ("nft301", 0, "NFT301: Another Service that takes precedence"),
        ("codes", 0, "NFT001  nftproxy is starting\nNFT002  "),
        ("NFT999", 2, ""),
        ("NFT", 2, ""),
    ],
)
def test_explain_knows_codes(to: str, status: int, begins: str) -> None:
    """`nftproxy explain` takes a code in any case, and an unknown code is an error."""
    done = nftproxy("explain", to)
    assert done.status == status
    assert done.out.startswith(begins)
    assert bool(done.out) is (status == 0)


def test_the_page_has_the_articles() -> None:
    """docs/codes.md has the articles, and with UPDATE_DOCS=1 it is written."""
    written, heading, _ = PAGE.read_text().partition("\n## ")
    wanted = f"{written}\n{page()}"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(wanted)
    assert heading
    assert PAGE.read_text() == wanted


def test_symptoms_and_articles_name_codes_that_exist() -> None:
    """Each code that a page names has an article."""
    texts = "".join(path.read_text() for path in [*(CHECKOUT / "docs").rglob("*.md"), CHECKOUT / "CONTRIBUTING.md"])
    assert set(re.findall(r"NFT\d+", texts)) <= set(CODES)
