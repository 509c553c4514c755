"""Every template is registered everywhere: in the table's shape, and in the docs for people who change templates.

Nothing in the rules is wrong without these places.  A set that the shape leaves out is noticed at the first upgrade
that changes it, when the kernel refuses the load.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nftproxy.installed import ALL_TEMPLATES
from nftproxy.pipeline import Pipeline
from nftproxy.policy.facts import TableFacts
from nftproxy.policy.skeleton import compile_table
from nftproxy.rules.renderer import DRAW_TEMPLATE, Renderer
from nftproxy.rules.template_code import TemplateCode, compile_templates
from tests.support.examples import EXAMPLES, example_pipeline
from tests.support.factories import DECLARED as FIELDS
from tests.support.factories import IPV4, pipeline, renderer, templates

CHECKOUT = Path(__file__).resolve().parents[2]
DATA_PLANE = CHECKOUT / "docs" / "data-plane.md"
PAGE_OF_TEMPLATES = CHECKOUT / "docs" / "templates.md"

CONFIGURED: dict[str, Any] = {
    name: value
    for name, value in {"service_counts": True, "external_addresses": "closed", "ping": "answer"}.items()
    if name in FIELDS
}
"""The options that add declarations to the skeleton.  A reload with another configuration may change the shape."""
WITHOUT_SHAPE = {
    DRAW_TEMPLATE: "its maps of slots come one by one, and a load that they make the kernel refuse replaces the table",
    "extensions/fast_path/fast-path.nft.j2": "it is a table of its own, whose comment is a hash of its text",
}
CONTAINER = re.compile(r"^  (?:set|map) (?P<name>\S.*) \{\n", re.MULTILINE)
HOOK = re.compile(r"^  chain (?P<name>\S+) \{\n    type \w+ hook \w+ priority (?P<priority>.+)\n", re.MULTILINE)
DECLARED = [
    pytest.param(name, found.end() if kind is CONTAINER else found.end("priority"), id=f"{name}: {found['name']}")
    for name, text in templates().items()
    if name not in WITHOUT_SHAPE
    for kind in (CONTAINER, HOOK)
    for found in kind.finditer(text)
]
"""Each set, map and base chain of a template, with a place in the text of its declaration."""


def table_facts(agent: Pipeline) -> TableFacts:
    """The facts of a pipeline's skeleton."""
    return compile_table(agent.state, agent.settings, IPV4)


CODE = compile_templates(templates())
FACTS = table_facts(pipeline(**CONFIGURED))
SHAPE = renderer().shape(FACTS)


def test_every_template_is_installed() -> None:
    """The proxy and the extensions name each template that is below templates/."""
    found = {path.relative_to(CHECKOUT / "templates").as_posix() for path in (CHECKOUT / "templates").rglob("*.j2")}
    assert set(ALL_TEMPLATES) == found


@pytest.mark.parametrize(("name", "end"), DECLARED)
def test_the_shape_covers_each_declaration(name: str, end: int) -> None:
    """A table has another shape if the declaration of a set or map, or the hook of a base chain, changes."""
    text = templates()[name]
    changed = Renderer({**templates(), name: f"{text[:end]} 9{text[end:]}"}, TemplateCode(CODE))
    assert changed.shape(FACTS) != SHAPE


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_service_changes_the_shape(example: str) -> None:
    """A table with Services has the shape of a table without, so the first Service of a feature replaces no table."""
    full = example_pipeline(example)
    empty = pipeline(settings=full.settings)
    assert renderer().shape(table_facts(full)) == renderer().shape(table_facts(empty))


def hooks(text: str) -> dict[str, str]:
    """The base chains of a template, with their priorities.  One of the priorities is 0, or -1 for a canary."""
    return {found["name"]: found["priority"].replace("{{ filter_priority }}", "0") for found in HOOK.finditer(text)}


def documented_hooks() -> dict[str, str]:
    """The base chains in the table of docs/data-plane.md.  A priority stands behind all chains that have it."""
    found: dict[str, str] = {}
    section = DATA_PLANE.read_text().partition("## Hooks")[2].partition("\n## ")[0]
    for cell in re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE):
        for names, priority in re.findall(r"((?:`[-a-z]+`(?:, )?)+) (-?\d+)", cell):
            found |= dict.fromkeys(re.findall(r"`([-a-z]+)`", names), priority)
    return found


def test_every_hook_is_documented() -> None:
    """The table of hooks in docs/data-plane.md has the base chains of all templates, with their priorities."""
    assert documented_hooks() == {
        name: priority for text in templates().values() for name, priority in hooks(text).items()
    }


def test_every_template_has_a_row() -> None:
    """The table in docs/templates.md has a row for each template, which links to it."""
    rows = re.findall(r"^\| \[[^]]+\]\(\.\./templates/([^)]+)\) \| ", PAGE_OF_TEMPLATES.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(ALL_TEMPLATES)
