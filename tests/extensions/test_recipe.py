"""CONTRIBUTING.md names each door of the seam, so that a newcomer doesn't miss one."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator

from nftproxy_conformance.strategies.extensions.inputs import Inputs

from nftproxy import installed
from nftproxy.agent.agent_part import AgentPart
from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.explanation.words import Words
from nftproxy.model.annotations import Option
from nftproxy.model.config_fields import ConfigField
from tests.conftest import CHECKOUT


def doors() -> Iterator[str]:
    """The parts of the seam that a feature may leave out: words, fields with a default, methods, functions."""
    yield "words"
    for kind in (ExplainedExtension, Words, Option, ConfigField, Inputs):
        for field in dataclasses.fields(kind):
            if (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING):
                yield field.name
    yield from (name for name in vars(AgentPart) if not name.startswith("_"))
    functions = inspect.getmembers(installed, inspect.isfunction)
    yield from (name for name, function in functions if function.__module__ == installed.__name__)


def test_the_recipe_names_each_door() -> None:
    """A new field of the seam gets its place in the recipe."""
    recipe = (CHECKOUT / "CONTRIBUTING.md").read_text().partition("\n## A feature\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", recipe))
    found = set(doors())
    assert {"words", "status", "checks", "instead_of", "remarks"} <= found
    assert found - named == set()
