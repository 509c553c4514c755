"""The elements that Services put into a table, by each rule of a proxy's behaviour.

Elements are asserted as nft has them, so these tests hold for compile.py, its facts and service.nft.j2 together.
"""

from __future__ import annotations

from typing import Any

from nftproxy_conformance.strategies.objects import Given

from nftproxy.model.addresses import Family
from nftproxy.pipeline import SKELETON, Pipeline
from nftproxy.policy.facts import TableFacts
from nftproxy.policy.skeleton import compile_table
from tests.support.factories import IPV4, elements, node, pipeline, slice_of

VIP = "203.0.113.7"
ONE_LOCAL = slice_of(endpoints=["10.1.0.4@node-a", "10.1.1.4@node-b"])
NONE_LOCAL = slice_of(endpoints=["10.1.1.4@node-b"])
DUAL = node(internal_ips=["192.168.0.2", "192.168.0.3"], external_ips=["203.0.113.2"])


def rules(made: Pipeline, family: Family = IPV4) -> dict[str, dict[str, str]]:
    """The elements of Services in a family's table, by set and map.

    Numbers that say how an endpoint is drawn are shown as the chain that they lead to, as in "tcp-endpoints-of-2", or
    as "nothing".
    """
    blocks = made.generations[family].blocks
    names = {element.container for owner, block in blocks.items() if owner != SKELETON for element in block.elements}
    found = {name: elements(made, family, name) for name in names}
    for name in found.keys() & {
        f"{prefix}{each}" for prefix in ("", "nodeport-") for each in ("services", "short-circuit")
    }:
        found[name] = drawn(made, family, name)
    return found


def drawn(made: Pipeline, family: Family, name: str) -> dict[str, str]:
    """The name of the chain that draws for each front, from `services`, `short-circuit` or a twin of theirs."""
    chains = elements(made, family, "nodeport-draws" if name.startswith("nodeport-") else "draws")
    return {
        front: chains[number].removeprefix("goto ").replace("undrawn", "nothing")
        for front, number in elements(made, family, name).items()
    }


def memberships(made: Pipeline, front: str, family: Family = IPV4) -> dict[str, str]:
    """The sets and maps that have a key, with its value in each."""
    return {name: held[front] for name, held in rules(made, family).items() if front in held}


def compiled(*objects: Given, family: Family = IPV4, **tweaks: Any) -> TableFacts:
    """The facts of a table's skeleton. The `tweaks` are passed to `pipeline`."""
    made = pipeline(*objects, **tweaks)
    return compile_table(made.state, made.settings, family)
