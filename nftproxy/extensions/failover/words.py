"""The words of failover, in `explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nftproxy.explanation.clients import Client
from nftproxy.explanation.ownership import Served
from nftproxy.explanation.question import ToAddress
from nftproxy.explanation.words import Words
from nftproxy.extensions.failover.annotations import Failover
from nftproxy.extensions.failover.rules import uses
from nftproxy.model.addresses import Protocol
from nftproxy.pipeline import Pipeline

_REMARKS = {
    Failover.SILENT: "endpoints that don't answer this node are left out, up to half of a list, until they answer",
    Failover.REFUSED: (
        "endpoints that refuse or can't be reached are left out, up to half of a list, and the connections go elsewhere"
    ),
    Failover.GONE: "connections to an endpoint end once its address is in no EndpointSlice",
}


def _remarks(_pipeline: Pipeline, _spot: ToAddress, served: Served, _asking: Sequence[Client]) -> Iterator[str]:
    """A remark for each failure: only the node's agent knows which endpoints have failed."""
    if served.port.protocol is Protocol.TCP:
        yield from (remark for failure, remark in _REMARKS.items() if failure in uses(served.service))


WORDS = Words(remarks=_remarks)
