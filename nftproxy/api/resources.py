"""The resources of the cluster that a service proxy lists and watches: kinds, their names in URLs, and selectors.

The server selects, so that it sends no object that nobody reads.  To a watch with a selector, an object that no longer
matches is deleted, and an object that now matches is added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from nftproxy.api.kinds import ObjectKind, kinds_for
from nftproxy.api.slices import HEADLESS
from nftproxy.model.annotations import Option
from nftproxy.model.objects import ClusterObject, EndpointSlice, Node, Service, ServiceCIDR
from nftproxy.model.settings import PROXY_NAME


class Resource(NamedTuple):
    """A kind of objects to list and watch, and the API's selectors for them."""

    kind: ObjectKind
    model: type[ClusterObject]
    plural: str
    label_selector: str = ""
    field_selector: str = ""
    may_be_absent: bool = False  # some clusters don't know the kind
    is_small: bool = False  # all objects are listed as fast as a single object

    @property
    def selectors(self) -> dict[str, str]:
        """The parameters of a list or watch that select objects."""
        given = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in given.items() if value}


def resources(node_name: str, proxy_name: str = "", options: Iterable[Option[Any]] = ()) -> tuple[Resource, ...]:
    """Return the resources for the proxy of a node, in the order in which they are listed fastest.

    With a name, the proxy reads only objects with this label, as for Cilium and Antrea, and no ServiceCIDRs (kinds.py).
    Without a name it reads all Services, also those of other proxies and without addresses: `explain` says of each why
    it isn't served.  Only their names, reasons and ClusterIPs are kept.
    """
    kinds = kinds_for(proxy_name, options)
    ours = f"{PROXY_NAME}={proxy_name}" if proxy_name else ""
    cidrs = Resource(kinds["ServiceCIDR"], ServiceCIDR, "servicecidrs", may_be_absent=True, is_small=True)
    return (
        Resource(kinds["Node"], Node, "nodes", field_selector=f"metadata.name={node_name}", is_small=True),
        *(() if proxy_name else (cidrs,)),
        Resource(kinds["Service"], Service, "services", ours),
        Resource(
            kinds["EndpointSlice"], EndpointSlice, "endpointslices", ",".join(filter(None, [f"!{HEADLESS}", ours]))
        ),
    )
