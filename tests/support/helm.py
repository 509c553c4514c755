"""Renders the templates of a chart as Helm does, as far as ours use its language.

That is `if`, `else`, `with`, `end`, `not`, fields of `.Values`, and the functions toYaml, quote and indent.  Anything
else is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

TOKEN = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a chart with those that are given, map by map, as Helm merges them."""
    return {
        name: merged(defaults[name], value) if isinstance(value, Mapping) and name in defaults else value
        for name, value in {**defaults, **given}.items()
    }


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template."""
    text = re.sub(r"\s*\{\{-", "{{", template)  # a dash takes the space before it
    assert "-}}" not in text
    pieces = TOKEN.split(text)
    tokens = [pieces[0]]
    for _, action, _, following in zip(*[iter(pieces[1:])] * 4, strict=True):
        tokens += [f"{{{action}", following]
    stream = iter(tokens)
    found = "".join(_block(stream, {"Values": values}, is_shown=True)[0])
    assert next(stream, None) is None
    return found


def _block(stream: Iterator[str], dot: Any, *, is_shown: bool) -> tuple[list[str], str]:
    """The texts up to the end of a block, and the word that ends it."""
    texts: list[str] = []
    for token in stream:
        if not token.startswith("{"):
            texts += [token] * is_shown
            continue
        keyword, _, rest = token[1:].partition(" ")
        if keyword in ("end", "else"):
            return texts, keyword
        if keyword in ("if", "with"):
            value = _condition(rest, dot)
            inner, ending = _block(stream, value if keyword == "with" else dot, is_shown=is_shown and bool(value))
            texts += inner
            if ending == "else":
                inner, ending = _block(stream, dot, is_shown=is_shown and not value)
                texts += inner
            assert ending == "end"
        elif is_shown:
            texts.append(_value(token[1:], dot))
    return texts, ""


def _condition(text: str, dot: Any) -> Any:
    return not _condition(text[4:], dot) if text.startswith("not ") else _field(text, dot)


def _field(path: str, dot: Any) -> Any:
    assert re.fullmatch(r"\.|(\.\w+)+", path), path
    for name in path.split(".")[1:]:
        dot = dot[name] if name else dot
    return dot


def _value(pipeline: str, dot: Any) -> str:
    first, *functions = pipeline.split(" | ")
    name, _, argument = first.rpartition(" ")
    value = _field(argument, dot)
    for function in [*([name] if name else []), *functions]:
        match function.split():
            case ["toYaml"]:
                value = yaml.safe_dump(value, default_flow_style=False).rstrip("\n")
            case ["quote"]:
                value = json.dumps(str(value))
            case ["indent", number]:
                value = re.sub("^", int(number) * " ", value, flags=re.MULTILINE)
            case _:
                raise AssertionError(function)
    return str(value)
