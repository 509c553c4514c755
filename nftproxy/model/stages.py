"""The stages of a sync: what its time is spent on, in the order in which a change passes them."""

from __future__ import annotations

from nftproxy.model.keys import KeyEnum


class Stage(KeyEnum):
    """A stage of a sync; the value is its label in metrics.

    `STATE`: events into the cluster's state, and who owns what.  `COMPILE`: facts for the Services that were touched.
    `RENDER`: these through the templates.  `DIFF`: what changes, and the transaction's text.  `FOLLOW`: what else
    depends on the Services (UDP flows, health checks, node ports at localhost).  `COMMIT`: libnftables and the kernel.
    """

    STATE = "state"
    COMPILE = "compile"
    RENDER = "render"
    DIFF = "diff"
    FOLLOW = "follow"
    COMMIT = "commit"
