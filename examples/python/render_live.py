"""Prints the rules that nftproxy would have on a node of a live cluster, and the conflicts there.

    python render_live.py NODE [TO [SOURCE]]

With TO, it explains a connection instead.  The cluster is kubectl's, and it is only read.
"""

import sys
from typing import Any

import kr8s
from kr8s.objects import APIObject, Node, Service, new_class

import nftproxy

# kr8s has no classes of its own for these, and gets their kinds wrong if only the plural is given.
EndpointSlice = new_class("EndpointSlice", "discovery.k8s.io/v1", namespaced=True)
ServiceCIDR = new_class("ServiceCIDR", "networking.k8s.io/v1", namespaced=False)


def objects(node: str) -> list[APIObject | dict[str, Any]]:
    """Return the objects that the proxy of a node reads."""
    api = kr8s.api()
    return [
        *api.get(Service, namespace=kr8s.ALL),
        *api.get(EndpointSlice, namespace=kr8s.ALL),
        *api.get(ServiceCIDR),
        *api.get(Node, node),
    ]


def main(node: str, *question: str) -> None:
    """Print the rules, or an explanation."""
    cluster = nftproxy.Cluster(objects(node), node, {"clusterCIDR": "10.1.0.0/16"})
    if question:
        print(cluster.explain(*question))
        return
    rendered = cluster.render()
    print(rendered.text, end="")
    for problem in rendered.problems:
        print(f"wrong: {problem}", file=sys.stderr)
    for conflict in rendered.conflicts:
        print(f"conflict: {conflict}", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
