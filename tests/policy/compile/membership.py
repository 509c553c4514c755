"""What Services put into a table: each rule of a proxy's behaviour, as the elements that it makes.

Elements are asserted as nft has them, so these tests hold for compile.py, its facts and service.nft.j2 together.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from nftproxy.conformance.strategies import Given
from nftproxy.model.addresses import Family
from nftproxy.pipeline import SKELETON, Pipeline
from nftproxy.policy.compile import compile_table
from nftproxy.policy.facts import TableFacts
from tests.support.factories import IPV4, elements, node, pipeline, slice_of

VIP = "203.0.113.7"
ONE_LOCAL = slice_of(endpoints=["10.1.0.4@node-a", "10.1.1.4@node-b"])
NONE_LOCAL = slice_of(endpoints=["10.1.1.4@node-b"])
DUAL = node(internal_ips=["192.168.0.2", "192.168.0.3"], external_ips=["203.0.113.2"])


def rules(made: Pipeline, family: Family = IPV4) -> dict[str, dict[str, str]]:
    """All that Services put into a family's table: what each set and map holds.

    Counts of endpoints are shown with the verdicts that lead to them, as in "goto draw-tcp-endpoints: 2".
    """
    blocks = made.generations[family].blocks
    names = {element.container for owner, block in blocks.items() if owner != SKELETON for element in block.elements}
    found = {name: elements(made, family, name) for name in names if not name.endswith("-count")}
    for name in found.keys() & {
        f"{prefix}{each}" for prefix in ("", "nodeport-") for each in ("services", "short-circuit")
    }:
        found[name] = {front: _with_count(made, family, front, verdict) for front, verdict in found[name].items()}
    return found


def _with_count(made: Pipeline, family: Family, front: str, verdict: str) -> str:
    chain = re.fullmatch(r"goto draw-(.*endpoints)(?:-sticky-\d+|-by-client)?", verdict)
    assert chain, verdict
    *address, _, port = front.split(" . ")
    count = elements(made, family, f"{chain[1]}-count").get(" . ".join([*address, port]), "0.0.0.0")
    return f"{verdict}: {int(ipaddress.ip_address(count))}"


def memberships(made: Pipeline, front: str, family: Family = IPV4) -> dict[str, str]:
    """The sets and maps that one key is in, with its value there."""
    return {name: held[front] for name, held in rules(made, family).items() if front in held}


def compiled(*objects: Given, family: Family = IPV4, **tweaks: Any) -> TableFacts:
    """The facts of a table's skeleton; `tweaks` are those of `pipeline`."""
    made = pipeline(*objects, **tweaks)
    return compile_table(made.state, made.settings, family)
