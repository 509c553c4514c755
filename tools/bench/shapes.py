"""The same cluster in two shapes, by libnftables alone: ours, and a chain, a rule and a map for each Service.

The other shape is that of kube-proxy's nftables mode for a Service without affinity or policies, in as few rules as
possible: a chain that marks connections for masquerading and draws an endpoint from an anonymous map.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from nftproxy_conformance.lab.node import Node

from nftproxy.api.parse import parse_object
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import Ignored
from nftproxy.pipeline import Pipeline
from nftproxy.rules.ruleset import Generation, NftKind
from nftproxy.rules.transaction import Transaction
from tools.bench import changes, cluster
from tools.bench.cluster import CLUSTER_CIDR, Size
from tools.bench.figures import Figures, note, timed

CHANGES = 20
QUIET, STILL = 20.0, 256 * 1024  # seconds to wait at the most until slab changes by no more bytes in half a second


class Shape(NamedTuple):
    """A way to write a cluster down: all of it, and changes to Services in turn."""

    name: str
    everything: str
    rules: int
    changes: Iterable[str]


def measure_shapes(size: Size, figures: Figures) -> None:
    """Load each shape into a namespace of its own, and make changes."""
    for make in (_ours, _per_service):
        shape = make(size)
        with Node("shape") as node:
            _measure(node, shape, f"shape/{size.services}/{shape.name}", figures)


def _measure(node: Node, shape: Shape, name: str, figures: Figures) -> None:
    kernel = Kernel()
    before = _slab()
    figures[f"{name}/load"] = node.call(_apply, kernel, shape.everything)
    figures[f"{name}/slab"] = _slab() - before
    figures[f"{name}/rules"] = shape.rules
    note(figures, f"{name}/change", [node.call(_apply, kernel, text) for text in shape.changes])


def _apply(kernel: Kernel, text: str) -> float:
    return timed(lambda: kernel.apply(Transaction(text)))[1]


def _slab() -> int:
    """The slab of the machine's kernel in bytes, once it no longer changes.  It leaves out large hash tables."""
    last, now = -1, _slab_now()
    deadline = time.monotonic() + QUIET
    while abs(now - last) > STILL and time.monotonic() < deadline:
        time.sleep(0.5)
        last, now = now, _slab_now()
    return now


def _slab_now() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Slab:"))


# ---- ours ----------------------------------------------------------------------------------------------------------


def _ours(size: Size) -> Shape:
    pipeline = cluster.new_pipeline()
    pipeline.ingest([_put(each) for each in cluster.objects(size)])
    rules = sum(_rule_count(generation) for generation in pipeline.generations.values())
    return Shape("ours", pipeline.full_transaction({}).text, rules, _our_changes(size, pipeline))


def _rule_count(generation: Generation) -> int:
    chains = (each for each in generation.declarations.values() if each.kind is NftKind.CHAIN)
    return sum(not line.startswith("type ") for chain in chains for line in chain.body)


def _our_changes(size: Size, pipeline: Pipeline) -> Iterator[str]:
    for change in changes.replacements(size, CHANGES):
        assert change.body is not None
        yield pipeline.ingest([_put(change.body)]).text


def _put(document: cluster.Object) -> Event:
    parsed = parse_object(document, "", [])
    assert parsed is not None
    assert not isinstance(parsed, Ignored)
    return Put(parsed)


# ---- a chain for each Service --------------------------------------------------------------------------------------

SKELETON = """
table ip per-service {
  map service-ips {
    typeof ip daddr . meta l4proto . th dport : verdict
  }
  chain mark-for-masquerade {
    meta mark set meta mark | 0x4000
  }
  chain masquerading {
    type nat hook postrouting priority srcnat
    meta mark & 0x4000 != 0 meta mark set meta mark & 0xffffbfff masquerade fully-random
  }
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
  }
  chain nat-prerouting {
    type nat hook prerouting priority dstnat
    jump services
  }
  chain nat-output {
    type nat hook output priority -100
    jump services
  }
}
"""
SKELETON_RULES = 5


def _per_service(size: Size) -> Shape:
    numbers = range(size.services)
    chains = "".join(f"add chain ip per-service s{number}\n" for number in numbers)
    rules = "".join(_rules(number, cluster.pods(size, number)) for number in numbers)
    fronts = ", ".join(f"{cluster.vip(number)} . tcp . 80 : goto s{number}" for number in numbers)
    everything = f"{SKELETON}{chains}{rules}add element ip per-service service-ips {{ {fronts} }}\n"
    return Shape("per Service", everything, 2 * size.services + SKELETON_RULES, _their_changes(size))


def _their_changes(size: Size) -> Iterator[str]:
    for number in range(CHANGES):
        endpoints = [*cluster.pods(size, number)[1:], cluster.Pod(cluster.SPARE + number)]
        yield f"flush chain ip per-service s{number}\n{_rules(number, endpoints)}"


def _rules(number: int, endpoints: list[cluster.Pod]) -> str:
    drawn = ", ".join(f"{slot} : {pod.address} . 8080" for slot, pod in enumerate(endpoints))
    chain = f"add rule ip per-service s{number}"
    return (
        f"{chain} ip daddr {cluster.vip(number)} tcp dport 80 ip saddr != {CLUSTER_CIDR} jump mark-for-masquerade\n"
        f"{chain} meta l4proto tcp dnat ip addr . port to numgen random mod {len(endpoints)} map {{ {drawn} }}\n"
    )
