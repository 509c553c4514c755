"""The manual page, from the commands' own help."""

from __future__ import annotations

from collections.abc import Iterator

import click

from nftproxy.commands.cli import commands

PLACEHOLDER = "@COMMANDS@\n"
"""The line of nftproxy.8 that stands for the commands."""


def man_page(template: str) -> str:
    """Return the page with a section about the commands, each with its arguments, its help and its options."""
    assert PLACEHOLDER in template
    return template.replace(PLACEHOLDER, "".join(f"{line}\n" for line in _lines()))


def _lines() -> Iterator[str]:
    yield ".SH COMMANDS"
    for name, command in commands().items():
        context = click.Context(command, info_name=name)
        yield f".SS nftproxy {_escaped(name)} {_escaped(' '.join(command.collect_usage_pieces(context)))}"
        for number, paragraph in enumerate((command.help or "").split("\n\n")):
            if number:
                yield ".PP"
            yield _escaped(" ".join(paragraph.split()))
        for parameter in command.get_params(context):
            if record := parameter.get_help_record(context):
                yield ".TP"
                yield f".B {_escaped(record[0])}"
                yield _escaped(record[1]) or "."


def _escaped(text: str) -> str:
    """Return a text as roff has it: hyphens are typed ones, and no line begins a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
