"""Objects from files, for the start of a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects in YAML and JSON files of a path.  Lists are split into their items."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in {".json", ".yaml", ".yml"}:
                yield from documents(file)
    elif path.suffix == ".json":
        yield from _items(msgspec.json.decode(path.read_bytes()))
    else:
        for document in yaml.load_all(path.read_text(), LOADER):
            yield from _items(document or {})


def _items(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = document.get("kind", "")
    if not kind.endswith("List"):
        if kind:
            yield document
        return
    defaults = {"kind": kind.removesuffix("List"), "apiVersion": document.get("apiVersion", "v1")}
    for item in document.get("items") or ():
        yield from _items(defaults | item)
