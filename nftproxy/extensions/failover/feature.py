"""Failover from endpoints that are silent, that refuse, or that are gone (`nftproxy.dev/failover`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nftproxy.explanation.clients import Client
from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.explanation.ownership import Served
from nftproxy.explanation.question import ToAddress
from nftproxy.extensions.failover.annotations import FAILOVER as OPTION
from nftproxy.extensions.failover.annotations import Failover
from nftproxy.extensions.failover.codes import FailoverCode
from nftproxy.extensions.failover.fields import DEFAULT_FAILOVER
from nftproxy.extensions.failover.gone_addresses import GoneAddresses
from nftproxy.extensions.failover.rules import PORT, TABLE, FailoverTable, elements, ports, table, uses
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.extensions.failover.watched import concerned, left_out
from nftproxy.model.addresses import Protocol
from nftproxy.model.annotations import PLAIN, Options
from nftproxy.model.settings import Config
from nftproxy.pipeline import Pipeline
from nftproxy.policy.facts import Part

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


def _defaults(config: Config) -> Options:
    return Options.of({OPTION: config[DEFAULT_FAILOVER]}) if config[DEFAULT_FAILOVER] else PLAIN


FAILOVER = ExplainedExtension(
    name="failover",
    codes=tuple(FailoverCode),
    templates=(TABLE, PORT),
    options=(OPTION,),
    uses=uses,
    defaults=_defaults,
    elements=elements,
    table=table,
    later=lambda _: Part(TABLE, FailoverTable()),
    ports=ports,
    remarks=_remarks,
    view=GoneAddresses,
    left_out=left_out,
    concerned={SilentPlaces: concerned},
)
