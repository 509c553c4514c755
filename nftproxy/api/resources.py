"""Which resources of the cluster a service proxy follows: kinds, their places in the API, and which of their objects.

Selecting is left to the server: what nobody here would read is never sent.  To a watch with a selector, an object that
no longer matches is deleted, and one that now does is added.
"""

from __future__ import annotations

from typing import NamedTuple

from nftproxy.api.kinds import Kind, kinds_for
from nftproxy.api.services import PROXY_NAME
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


def resources(node_name: str, proxy_name: str = "") -> tuple[Resource, ...]:
    """All that a service proxy on a node follows, what is quickly listed first.

    With a name it follows what is labelled with that, as Cilium and Antrea do, and no ServiceCIDRs (kinds.py).
    """
    kinds = kinds_for(proxy_name)
    ours, slices = (f"{PROXY_NAME}={proxy_name}",) * 2 if proxy_name else (f"!{PROXY_NAME}", "")
    cidrs = Resource(kinds["ServiceCIDR"], ServiceCIDR, "servicecidrs", may_be_absent=True, is_small=True)
    return (
        Resource(kinds["Node"], Node, "nodes", field_selector=f"metadata.name={node_name}", is_small=True),
        *(() if proxy_name else (cidrs,)),
        Resource(kinds["Service"], Service, "services", ours, "spec.clusterIP!=None"),
        Resource(
            kinds["EndpointSlice"], EndpointSlice, "endpointslices", ",".join(filter(None, [f"!{HEADLESS}", slices]))
        ),
    )
