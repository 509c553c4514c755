"""Which resources of the cluster a service proxy follows: kinds, their places in the API, and which of their objects.

Selecting is left to the server: what nobody here would read is never sent.  To a watch with a selector, an object that
no longer matches is deleted, and one that now does is added.
"""

from __future__ import annotations

from typing import NamedTuple

from nftproxy.api.kinds import KINDS, Kind
from nftproxy.api.services import OTHER_PROXY
from nftproxy.api.slices import HEADLESS
from nftproxy.model.objects import ClusterObject, EndpointSlice, Node, Service, ServiceCIDR


class Resource(NamedTuple):
    """What is followed.

    The selectors are the API's.  `may_be_absent`: there are clusters that don't know the kind.  `is_small`: all of them
    are as quickly listed as one.
    """

    kind: Kind
    model: type[ClusterObject]
    plural: str
    label_selector: str = ""
    field_selector: str = ""
    may_be_absent: bool = False
    is_small: bool = False

    @property
    def selectors(self) -> dict[str, str]:
        """The parameters of a list or watch that select."""
        given = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in given.items() if value}


def resources(node_name: str) -> tuple[Resource, ...]:
    """All that a service proxy on a node follows, what is quickly listed first."""
    return (
        Resource(KINDS["Node"], Node, "nodes", field_selector=f"metadata.name={node_name}", is_small=True),
        Resource(KINDS["ServiceCIDR"], ServiceCIDR, "servicecidrs", may_be_absent=True, is_small=True),
        Resource(KINDS["Service"], Service, "services", f"!{OTHER_PROXY}", "spec.clusterIP!=None"),
        Resource(KINDS["EndpointSlice"], EndpointSlice, "endpointslices", f"!{HEADLESS}"),
    )
