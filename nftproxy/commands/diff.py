"""`nftproxy diff`: what would change, between two sets of manifests, or between manifests and what a node's kernel has.

What a node has is what its kernel holds, whatever the agent believes: every element, and sets, maps and chains by name.
Rules within chains are not compared.  How the node sees the cluster (its configuration, its Node, its addresses) comes
from its agent, or from options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from nftproxy.agent.answers import NodeFacts
from nftproxy.api.config import parse_config
from nftproxy.commands.live import LIVE, Agent
from nftproxy.commands.offline import EXISTING, OFFLINE_IF_ANY, loaded, offline_cluster, refuse_given
from nftproxy.commands.options import renderer
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Address, Family, parse_network
from nftproxy.model.events import Event, HostAddresses, Listed, Put
from nftproxy.model.objects import EndpointSlice, Node, Service, ServiceCIDR
from nftproxy.model.settings import Capabilities, Settings
from nftproxy.pipeline import Pipeline
from nftproxy.rules.ruleset import Change, Element, Generation, Kind
from nftproxy.rules.transaction import Container, Transaction, change_transaction, join


@click.command("diff")
@click.argument("paths", nargs=-1, required=True, type=EXISTING, metavar="OLD NEW | --live PATH...")
@click.option("--live", is_flag=True, help="Compare the manifests with what the kernel of this node holds; as root.")
@OFFLINE_IF_ANY
@LIVE
def diff_command(
    paths: tuple[Path, ...], live: bool, strict: bool, agent_socket: str, timeout: float, **options: Any
) -> None:
    """Print what would change between manifests, or on this node.

    It is the transaction from one set of manifests to another, or with --live from what this node has to manifests, as
    nft text.  With --live the agent is asked how the node sees the cluster, unless --node and --config say so.

    Exit status 1 if there is a difference, 0 if nothing differs.
    """
    if live:
        transaction = _from_kernel(_live_pipeline(paths, strict, Agent(agent_socket, timeout), **options))
    else:
        transaction = _from_manifests(paths, strict, **options)
    sys.stdout.write(transaction.text)
    sys.exit(1 if transaction else 0)


def _from_manifests(paths: tuple[Path, ...], strict: bool, **options: Any) -> Transaction:
    if len(paths) != 2:
        raise click.UsageError("two sets of manifests are compared, OLD and NEW, or with --live one with the kernel")
    if not options["node"]:
        raise click.UsageError("without --live give --node NAME: it says whose rules these are")
    old, new = paths
    cluster = offline_cluster([old], strict=strict, **options)
    return cluster.pipeline.apply(loaded([new], cluster.pipeline.settings.config, strict).listing())


def _live_pipeline(paths: tuple[Path, ...], strict: bool, agent: Agent, **options: Any) -> Pipeline:
    """What manifests ask for on this node."""
    if options["node"]:
        return offline_cluster(list(paths), strict=strict, **options).pipeline
    refuse_given(("config_file", "ipv6_affinity"), "counts with --node: without that the agent says how it is set up")
    facts = agent.node_facts()
    (document,) = msgspec.json.decode(facts.configuration).values()
    config, _ = parse_config(document, "the agent")
    wanted = options["family"]
    families = [family for family in map(Family, facts.families) if wanted in (None, family.value)]
    settings = Settings(config, Capabilities(wide_maps=facts.wide_maps))
    pipeline = Pipeline(facts.name, settings, renderer(options["templates"]), families)
    pipeline.apply(_node_events(facts))
    listing = loaded(paths, config, strict).listing()
    pipeline.apply(each for each in listing if isinstance(each, Listed) and _counts(each))
    return pipeline


def _counts(listed: Listed) -> bool:
    """Whether manifests say what there is of a kind; where they have no Node, the node's own stays."""
    return bool(listed.objects) or listed.kind in (Service, EndpointSlice)


def _node_events(facts: NodeFacts) -> Iterable[Event]:
    """The node as its agent knows it."""
    internal, external = (tuple(map(Address, each)) for each in (facts.internal_ips, facts.external_ips))
    yield Put(Node(facts.name, facts.zone, internal, external, tuple(map(parse_network, facts.pod_cidrs))))
    yield Put(ServiceCIDR("of the agent", tuple(map(parse_network, facts.service_cidrs))))
    if facts.host_addresses is not None:
        yield Put(HostAddresses(frozenset(map(Address, facts.host_addresses))))


def _from_kernel(pipeline: Pipeline) -> Transaction:
    """The transaction that leads the kernel from what it holds to what the pipeline has.

    Raises:
        Unavailable: the kernel can't be asked.
    """
    kernel = Kernel()
    found = []
    for family, generation in pipeline.generations.items():
        installed = kernel.read_back(family)
        if installed is None or not installed.has_hooks:
            found.append(pipeline.load(family, installed))
        else:
            change = difference(generation, installed.containers, kernel.elements(family))
            found += [change_transaction(family, change)] if change else []
    return join(found)


def difference(generation: Generation, containers: Iterable[Container], held: Iterable[Element]) -> Change:
    """What a generation has beyond the kernel, and the kernel beyond it.

    What the agent keeps although nothing uses it any more, and the elements that come with it, are no difference.
    """
    change = Change()
    used = generation.used_declarations()
    present = {(container.kind, container.name) for container in containers}
    change.declared.update({identity: each for identity, each in used.items() if identity not in present})
    leading = {entry.container for each in used.values() for entry in each.entries}
    declared = {each.name for each in used.values() if each.kind is not Kind.CHAIN}
    wanted = set(generation.used_elements())
    known = {_normal(element) for element in held}
    for element in sorted(known - {_normal(each) for each in wanted}):
        if element.container in declared - leading:
            change.remove(element)
    for element in sorted(each for each in wanted if _normal(each) not in known):
        change.add(element)
    return change


def _normal(element: Element) -> Element:
    """The element as the kernel shows it, which knows no ranges of one address."""
    width = "/128" if ":" in element.key else "/32"
    return msgspec.structs.replace(
        element, key=" . ".join(part.removesuffix(width) for part in element.key.split(" . "))
    )
