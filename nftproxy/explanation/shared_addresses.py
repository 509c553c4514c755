"""Addresses that EndpointSlices of a Service have on more than one node, which two pods may have by mistake."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from nftproxy.model.addresses import Address
from nftproxy.model.objects import EndpointSlice
from nftproxy.model.texts import first_of


def on_several_nodes(slices: Iterable[EndpointSlice]) -> Generator[None, None, list[str]]:
    """Return a sentence for the addresses that serve on several nodes.  It yields after each EndpointSlice."""
    nodes: dict[Address, str] = {}
    shared: dict[Address, set[str]] = {}
    for each in slices:
        for address, state in zip(each.endpoints.addresses, each.endpoints.states, strict=True):
            if state.serving and state.node_name and nodes.setdefault(address, state.node_name) != state.node_name:
                shared.setdefault(address, {nodes[address]}).add(state.node_name)
        yield
    found = [f"{address} (on {', '.join(sorted(names))})" for address, names in sorted(shared.items())]
    text = "pods of several nodes have the same address, and only one pod is reached: {}"
    return [text.format(first_of(found))] if found else []
