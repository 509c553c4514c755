"""The stages of a sync, in the order in which a change passes them."""

from __future__ import annotations

from nftproxy.model.keys import KeyEnum


class Stage(KeyEnum):
    """A stage of a sync.  The value is its label in metrics."""

    STATE = "state"  # from events to the cluster's state, and the owners of addresses
    COMPILE = "compile"  # from the Services that were touched to facts
    RENDER = "render"  # from facts to elements and chains, by the templates
    DIFF = "diff"  # from the difference to the transaction's text
    FOLLOW = "follow"  # all else that depends on Services: UDP flows, health checks, node ports at localhost
    COMMIT = "commit"  # libnftables and the kernel
