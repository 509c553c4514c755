"""The startup taint: how it is taken off a Node, without harm to whatever else happens to the Node meanwhile."""

from __future__ import annotations

from typing import Any

import msgspec

from nftproxy.api.responses import Unreadable


class _Meta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion")


class _Spec(msgspec.Struct):
    taints: list[dict[str, Any]] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta
    spec: _Spec | None = None


def without_taint(node: bytes, key: str) -> bytes | None:
    """The JSON merge patch (RFC 7386) that takes every taint of a key off a Node, given its JSON; None if it has none.

    Taints are one list, which a patch can only replace.  So the patch names the resourceVersion that it is made for: if
    the Node has changed since, the API denies it with 409, and no taint that another one has set is lost.

    Raises:
        Unreadable: this is no Node.
    """
    try:
        found = msgspec.json.decode(node, type=_Node)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Unreadable(f"a Node that can't be read: {error}") from error
    taints = (found.spec or _Spec()).taints or []
    others = [taint for taint in taints if taint.get("key") != key]
    if len(others) == len(taints):
        return None
    patch = {"metadata": {"resourceVersion": found.metadata.version}, "spec": {"taints": others or None}}
    return msgspec.json.encode(patch)
