"""Whether this kernel has flowtables, which the fast path needs, and whether all tests shall use it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

from nftproxy_conformance.lab import Lab
from nftproxy_conformance.lab.namespace import LabError
from nftproxy_conformance.lab.node import Node

from tests.support.factories import renderer

IS_WANTED = os.environ.get("NFTPROXY_FAST_PATH") == "1"
"""With this variable agents keep a fast path, and labs try it."""
FOR_AGENTS = ["--fast-path-interfaces=*"] * IS_WANTED
"""Options of agents."""
on_fast_path: list[int] = []
"""Connections that labs have tried on the fast path."""
PROBE = """
table inet probe {
  flowtable f {
    hook ingress priority 0
  }
  chain c {
    type filter hook forward priority 0
    meta l4proto tcp flow add @f
  }
}
"""


@contextmanager
def trying_lab() -> Iterator[Lab]:
    """A lab, which also tries connections on the fast path if that is wanted."""
    with Lab(fast_path=renderer() if IS_WANTED else None) as made:
        yield made
        if made.fast_path:
            on_fast_path.append(made.fast_path.connections)


@functools.cache
def has_flowtables() -> bool:
    """Whether the kernel takes a flowtable, and a rule that adds connections to it."""
    with Node("node") as node:
        try:
            node.load(PROBE)
        except LabError:
            return False
    return True


def loadable(text: str) -> str:
    """Rules without the table of the fast path, if this kernel has no flowtables."""
    return text if has_flowtables() else text.partition("\ntable inet nftproxy-fast-path ")[0]
