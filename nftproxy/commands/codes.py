"""What `nftproxy explain NFT012` says, and docs/troubleshooting.md too: both are made from codes.toml."""

from __future__ import annotations

import functools
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from nftproxy.model.codes import Code

ARTICLES = Path(__file__).with_name("codes.toml")

WIDTH = 100
"""Columns of a text for a terminal: long commands stay whole all the same."""
PAGE_WIDTH = 120
"""Columns of a page of docs/."""

AREAS = {
    "0": "The process and its node",
    "1": "Configuration, credentials, arguments",
    "2": "Objects and files that can't be used",
    "3": "What a Service asks for and doesn't get",
    "4": "The kernel",
    "5": "The API server",
    "6": "What `nftproxy doctor` finds",
}
"""What codes are about, by the hundreds of their numbers."""


_BY_NUMBER = {code.value: code for code in Code}


class Article(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a code means, how it shows, what to do, and the commands that check; ` marks what is typed or read."""

    means: str
    shows: str
    do: str
    check: tuple[str, ...]


@functools.cache
def articles() -> Mapping[Code, Article]:
    """The article of every code."""
    return msgspec.convert(tomllib.loads(ARTICLES.read_text(encoding="utf-8")), dict[Code, Article])


def explained(code: Code) -> str:
    """The article of a code, for a terminal."""
    article = articles()[code]
    parts = {"What it means": article.means, "How it shows": article.shows, "What to do": article.do}
    paragraphs = [f"{code}: {code.summary}", *(_wrapped(f"{title}: {text}", WIDTH) for title, text in parts.items())]
    commands = "".join(f"\n  {command}" for command in article.check)
    return "\n\n".join([*paragraphs, f"Commands that check:{commands}"]) + "\n"


def overview() -> str:
    """All codes, a line each."""
    return "".join(f"{code}  {code.summary}\n" for code in Code)


def page() -> str:
    """All articles as a part of a page, in Markdown."""
    return "\n".join(_page_parts()).rstrip("\n") + "\n"


def _page_parts() -> Iterator[str]:
    for digit, area in AREAS.items():
        yield f"### {area}\n"
        for code in Code:
            if code[3] == digit:
                yield from _page_article(code, articles()[code])


def _page_article(code: Code, article: Article) -> Iterator[str]:
    yield f"#### {code}\n"
    yield _wrapped(f"**{code.summary}.**  {article.means}", PAGE_WIDTH) + "\n"
    for title, text in (("How it shows", article.shows), ("What to do", article.do)):
        yield _wrapped(f"* *{title}:* {text}", PAGE_WIDTH, "  ")
    yield _wrapped(f"* *Check:* {', '.join(f'`{command}`' for command in article.check)}", PAGE_WIDTH, "  ") + "\n"


def print_article(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Print the article of a code, or all codes, and end; anything else is for the command that asks.

    Raises:
        click.BadParameter: there is no such code.
    """
    if value == "codes":
        click.echo(overview(), nl=False)
        context.exit()
    if re.fullmatch(r"NFT\d+", value, re.IGNORECASE | re.ASCII):
        if value.upper() not in _BY_NUMBER:
            raise click.BadParameter(f"{value} is no code; `nftproxy explain codes` lists them", param_hint="TO")
        click.echo(explained(_BY_NUMBER[value.upper()]), nl=False)
        context.exit()
    return value


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        fix_sentence_endings=True,
    )
