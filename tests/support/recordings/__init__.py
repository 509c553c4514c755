"""Exchanges with a real API server (kube-apiserver 1.36.2), as facts: what was asked, and what came back.

`kube-apiserver-1.36.2.json` has one exchange a line, in the order in which they were made.  Of answers everything is
there but the sentences (`message`, `description`), the managedFields and what a Node says about its machine.  `before`
lists what others wrote shortly before an exchange: at which resourceVersion, and what.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

PATH = Path(__file__).parent / "kube-apiserver-1.36.2.json"

Object = dict[str, Any]


class Before(msgspec.Struct, frozen=True):
    """What others did: they wrote an object, or deleted the one of this kind, namespace and name."""

    revision: int
    put: Object | None = None
    delete: tuple[str, str, str] | None = None


class Exchange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request and its answer.

    Args:
        name: what was tried.
        method: of the request.
        path: of the request, with the query.
        accept: the header of that name.
        content_type: the header of that name, "" without.
        user: who asked: an administrator, a "stranger" with a token that is none, or "nobody" without one.
        body: of the request.
        status: of the answer.
        headers: of the answer, those that matter; of a warning its number.
        answer: the body, null where it isn't JSON or YAML.
        lines: of a watch, each with the seconds after which it came; null for what is no watch.
        before: what others did before.
    """

    name: str
    method: str
    path: str
    accept: str
    status: int
    headers: dict[str, str]
    content_type: str = ""
    user: str = msgspec.field(name="as", default="administrator")
    body: Object | None = None
    answer: Object | None = None
    lines: list[tuple[float, Object]] | None = None
    before: tuple[Before, ...] = ()


EXCHANGES: tuple[Exchange, ...] = msgspec.json.decode(PATH.read_bytes(), type=tuple[Exchange, ...])
"""All exchanges."""
