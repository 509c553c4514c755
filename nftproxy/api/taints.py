"""The patch that removes the startup taint from a Node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nftproxy.api.responses import Unreadable


class _NodeMeta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion")


class _NodeTaints(msgspec.Struct):
    taints: list[dict[str, Any]] | None = None


class _TaintedNode(msgspec.Struct):
    metadata: _NodeMeta
    spec: _NodeTaints | None = None


def without_taint(node: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """Return the JSON merge patch (RFC 7386) that removes every taint of a key from a Node, or None without such a
    taint.

    Taints are a list, which a patch can only replace.  So the patch has the Node's resourceVersion.  If the Node has
    changed since, the API denies the patch with 409, and no taint that another program has set is lost.

    Args:
        node: the Node, decoded from JSON.
        key: the key of the taint.

    Raises:
        Unreadable: this is no Node.
    """
    try:
        found = msgspec.convert(node, _TaintedNode)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Unreadable(f"a Node that can't be read: {error}") from error
    taints = (found.spec or _NodeTaints()).taints or []
    others = [taint for taint in taints if taint.get("key") != key]
    if len(others) == len(taints):
        return None
    return {"metadata": {"resourceVersion": found.metadata.version}, "spec": {"taints": others or None}}
