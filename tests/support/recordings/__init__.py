"""Exchanges with a real API server (kube-apiserver 1.36.2), as facts: requests and answers.

`kube-apiserver-1.36.2.json` has an exchange on each line, in the order in which they were made.  The answers are
complete but for sentences (`message`, `description`), managedFields, and a Node's facts about its machine.  `before`
lists the writes of other clients shortly before an exchange, with their resourceVersions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

PATH = Path(__file__).parent / "kube-apiserver-1.36.2.json"

Object = dict[str, Any]


class Before(msgspec.Struct, frozen=True):
    """A write of another client: it put an object, or deleted the object of this kind, namespace and name."""

    revision: int
    put: Object | None = None
    delete: tuple[str, str, str] | None = None


class Exchange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request and its answer.

    Args:
        name: of the attempt.
        method: of the request.
        path: of the request, with the query.
        accept: the header of that name.
        content_type: the header of that name, "" without.
        user: the client: an administrator, a "stranger" with an invalid token, or "nobody" without a token.
        body: of the request.
        status: of the answer.
        headers: the headers of the answer that matter, and the number of a warning.
        answer: the body, null where it isn't JSON or YAML.
        lines: of a watch, each with the seconds after which it came.  Null if it is no watch.
        before: writes of other clients before it.
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
