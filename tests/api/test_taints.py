"""The patch that takes the startup taint off a Node, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from nftproxy.api.responses import Unreadable
from nftproxy.api.taints import without_taint

KEY = "nftproxy.dev/not-ready"
OTHER = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-12T08:00:00Z"}


def node(*taints: dict[str, Any]) -> dict[str, Any]:
    """A Node with these taints."""
    return {"metadata": {"name": "node-a", "resourceVersion": "7"}, "spec": {"taints": list(taints)}}


def patch(*taints: dict[str, Any]) -> Any:
    """The patch of such a Node, None without a patch."""
    return without_taint(node(*taints), KEY)


def test_only_taints_of_the_key_go() -> None:
    """Every taint of the key is removed, with any effect and value.  All other taints stay exactly, in their order."""
    own = [{"key": KEY, "effect": "NoSchedule"}, {"key": KEY, "value": "x", "effect": "NoExecute"}]
    last = {"key": f"{KEY}-2", "effect": "NoSchedule"}
    assert patch(own[0], OTHER, own[1], last) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": [OTHER, last]},
    }


def test_the_last_taint_takes_the_field_with_it() -> None:
    """A Node that has no other taint has none afterwards: null removes a field in a merge patch."""
    assert patch({"key": KEY, "effect": "NoSchedule"})["spec"] == {"taints": None}


@pytest.mark.parametrize("body", [node(), node(OTHER), {"metadata": {"resourceVersion": "7"}}])
def test_a_node_without_the_taint_needs_no_patch(body: dict[str, Any]) -> None:
    """Where there is nothing to remove there is nothing to write."""
    assert without_taint(body, KEY) is None


@pytest.mark.parametrize(
    "body", [{}, {"metadata": {}}, {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [1]}}]
)
def test_what_is_no_node(body: dict[str, Any]) -> None:
    """An unreadable Node is an error, and never a Node without taints."""
    with pytest.raises(Unreadable, match="a Node that can't be read"):
        without_taint(body, KEY)
