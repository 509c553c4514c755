"""Byte code of templates that another process has made."""

from __future__ import annotations

import jinja2
import pytest

from nftproxy.kernel.child_process import in_child
from nftproxy.model.errors import TemplateError
from nftproxy.rules.renderer import SERVICE_TEMPLATE, Renderer
from nftproxy.rules.template_code import TemplateCode, compile_templates
from tests.rules.test_renderer import PORT, TABLE
from tests.support.factories import renderer, templates


def _compiles_nothing(*_: object, **__: object) -> None:
    raise AssertionError("it was compiled already")


def test_byte_code_of_a_child_renders_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a child's byte code Jinja compiles nothing, and renders the same."""
    made = in_child(compile_templates, templates())
    expected = renderer().port(PORT, TABLE)
    monkeypatch.setattr(jinja2.Environment, "compile", _compiles_nothing)
    assert Renderer(templates(), TemplateCode(made)).port(PORT, TABLE) == expected


@pytest.mark.parametrize("made", [compile_templates(templates()), {}])
def test_a_template_without_byte_code_is_compiled(made: dict[str, bytes]) -> None:
    """A text that differs from the compiled text, or that was never compiled, is compiled."""
    changed = {**templates(), SERVICE_TEMPLATE: "add element {{ table }} services { 192.0.2.1 }\n"}
    code = TemplateCode(made)
    assert Renderer(changed, code).port(PORT, TABLE).lines == ("services 192.0.2.1",)
    assert code.made.keys() == compile_templates(templates()).keys()
    assert code.made != made


def test_a_template_that_does_not_parse() -> None:
    """The error passes from the child to its parent."""
    with pytest.raises(TemplateError, match=SERVICE_TEMPLATE):
        in_child(compile_templates, {**templates(), SERVICE_TEMPLATE: "{% if %}"})
