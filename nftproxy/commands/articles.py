"""The articles about codes, for `nftproxy explain NFT012` and for docs/codes.md, both from files articles.toml."""

from __future__ import annotations

import functools
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from nftproxy.installed import CODES, INSTALLED
from nftproxy.model.codes import AnyCode

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE / "commands", *(_PACKAGE / "extensions" / each.name for each in INSTALLED if each.codes))
"""The folders with articles: the proxy's, and those of the extensions that have codes."""

WIDTH = 100
"""Columns of a text for a terminal.  Long commands aren't wrapped."""
PAGE_WIDTH = 120
"""Columns of a page of docs/."""

AREAS = {
    "0": "The process and its node",
    "1": "Configuration, credentials, arguments",
    "2": "Objects and files that can't be used",
    "3": "Claims of a Service that fail",
    "4": "The kernel",
    "5": "The API server",
    "6": "Findings of `nftproxy doctor`",
}
"""The subjects of codes, by the hundreds of their numbers."""


_BY_NUMBER = {code.value: code for code in CODES}


class Article(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An article about a code, whose texts mark what is typed or read with `.

    Attributes:
        shows: where the code is seen, and what users notice.
        do: the remedy.
        check: commands that show more.
        means: the cause and its effects, or "" if the summary has them.
    """

    shows: str
    do: str
    check: tuple[str, ...]
    means: str = ""


@functools.cache
def articles() -> Mapping[AnyCode, Article]:
    """Return the article of every code, in the order of numbers."""
    texts = "\n".join((folder / "articles.toml").read_text(encoding="utf-8") for folder in _FOLDERS)
    found = msgspec.convert(tomllib.loads(texts), dict[str, Article])
    return {_BY_NUMBER[number]: found[number] for number in sorted(found)}


def explained(code: AnyCode) -> str:
    """Return the article of a code, for a terminal."""
    article = articles()[code]
    parts = {"What it means": article.means, "How it shows": article.shows, "What to do": article.do}
    said = [_wrapped(f"{title}: {text}", WIDTH) for title, text in parts.items() if text]
    paragraphs = [f"{code}: {code.summary}", *said]
    commands = "".join(f"\n  {command}" for command in article.check)
    return "\n\n".join([*paragraphs, f"Commands that check:{commands}"]) + "\n"


def overview() -> str:
    """Return a line for each code."""
    return "".join(f"{code}  {code.summary}\n" for code in CODES)


def page() -> str:
    """Return the remedy of each code as part of a page, in Markdown.  The rest is for `explain`."""
    return "\n".join(_page_parts()).rstrip("\n") + "\n"


def _page_parts() -> Iterator[str]:
    for digit, area in AREAS.items():
        yield f"## {area}\n"
        for code in CODES:
            if code[3] == digit:
                yield from _page_article(code, articles()[code])


def _page_article(code: AnyCode, article: Article) -> Iterator[str]:
    yield f"### {code}\n"
    yield _wrapped(f"**{code.summary}.**  {article.do}", PAGE_WIDTH) + "\n"


def print_article(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Print the article of a code, or all codes, and exit.  Return any other value to the command.

    Raises:
        click.BadParameter: the code doesn't exist.
    """
    if value == "codes":
        click.echo(overview(), nl=False)
        context.exit()
    if re.fullmatch(r"NFT\d+", value, re.IGNORECASE | re.ASCII):
        if value.upper() not in _BY_NUMBER:
            raise click.BadParameter(
                f"{value} is not a code; `nftproxy explain codes` lists all codes", param_hint="TO"
            )
        click.echo(explained(_BY_NUMBER[value.upper()]), nl=False)
        context.exit()
    return value


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(
        text,
        width,
        break_long_words=False,
        break_on_hyphens=False,
        fix_sentence_endings=True,
    )
