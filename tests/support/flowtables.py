"""Whether this kernel has flowtables, which the fast path needs."""

from __future__ import annotations

import functools

from nftproxy_conformance.lab.namespace import LabError
from nftproxy_conformance.lab.node import Node

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


@functools.cache
def has_flowtables() -> bool:
    """Whether the kernel takes a flowtable, and a rule that adds connections to it."""
    with Node("node") as node:
        try:
            node.load(PROBE)
        except LabError:
            return False
    return True
