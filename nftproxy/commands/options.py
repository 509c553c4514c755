"""Options that several commands share: the configuration, the templates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from nftproxy.installed_fields import FIELDS
from nftproxy.model.settings import Config
from nftproxy.sources.config_documents import load_config

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

CONFIG = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="A KubeProxyConfiguration.", metavar="FILE"
)
TEMPLATES = click.option(
    "--templates",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Use the templates in this directory.",
    metavar="DIR",
)


def options(*given: Decorator) -> Decorator:
    """Return a decorator that adds several options."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(given):
            command = option(command)
        return command

    return decorate


def configuration(file: Path | None) -> Config:
    """Return the configuration in a file, or the defaults, and print its warnings to standard error.

    Raises:
        BadInput: the file can't be read, or the configuration is bad.
    """
    config, warnings = load_config(file, FIELDS)
    for warning in warnings:
        click.echo(f"warning: {warning.coded}", err=True)
    return config
