"""`nftproxy diff`: the change between two sets of manifests, or from a node's kernel to manifests.

With --live the kernel is read, as the agent may be wrong: every element, and sets, maps and chains by name.  Rules
within chains aren't compared.  The node's view of the cluster (its configuration, its Node, its addresses) comes from
its agent, or from options.  Other nodes are asked by the same command in their agents' pods, with the manifests as its
standard input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from nftproxy.agent.socket.answers import NodeInputs
from nftproxy.api.kinds import kinds_for
from nftproxy.api.parse import parse_manifest
from nftproxy.commands.agent_client import LIVE, AgentClient
from nftproxy.commands.offline import EXISTING, OFFLINE_IF_ANY, loaded, offline_cluster, refuse_given, report
from nftproxy.commands.other_nodes import (
    FLEET_PARAMETERS,
    NODES_WITHOUT_NAMES,
    NodesAsked,
    nodes_asked,
    report_failures,
)
from nftproxy.config.parse_config import parse_config
from nftproxy.installed import INSTALLED, OPTIONS
from nftproxy.installed_fields import FIELDS
from nftproxy.kernel.libnftables import Kernel
from nftproxy.library import renderer
from nftproxy.model.addresses import Address, Family, parse_network
from nftproxy.model.errors import Problem
from nftproxy.model.events import ApiServers, Event, HostAddresses, Listed, Put
from nftproxy.model.objects import EndpointSlice, Node, Place, Service, ServiceCIDR
from nftproxy.model.settings import Capabilities
from nftproxy.model.texts import printable
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.rules.ruleset import Element, Generation, GenerationChange, NftKind
from nftproxy.rules.transaction import Container, Transaction, change_transaction, join
from nftproxy.sources.files import load_documents

COMPARISON = 30.0
"""Seconds that a node gets beside the agent's --timeout, to compile the manifests and to read its kernel."""


@click.command("diff")
@click.argument("paths", nargs=-1, required=True, type=EXISTING, metavar="OLD NEW | --live PATH...")
@click.option("--live", is_flag=True, help="Compare the manifests with this node's kernel.  Needs root.")
@OFFLINE_IF_ANY
@NODES_WITHOUT_NAMES
@LIVE
def diff_command(
    paths: tuple[Path, ...], live: bool, strict: bool, agent_socket: str, timeout: float, **options: Any
) -> None:
    """Print what would change between manifests, or on this node.

    The output is a transaction as nft text, from the manifests OLD to the manifests NEW, or with --live from this
    node's rules to the manifests.  With --live the agent says how the node sees the cluster, unless --node and --config
    do.

    With --live and --all-nodes, -l, or --node without --config, the manifests are compared with the kernels of these
    nodes, in their agents' pods.  Nodes with the same transaction are a group.

    Exit status 1 if there is a difference, 0 if there is none.
    """
    fleet = {name: options.pop(name) for name in FLEET_PARAMETERS}
    is_offline = not live or bool(options["config_file"])
    names = (options["node"],) if options["node"] and not is_offline else ()
    if asked := nodes_asked(nodes=names, agent_socket=agent_socket, timeout=timeout, is_offline=is_offline, **fleet):
        if not live:
            raise click.UsageError("--live is missing: the kernels of nodes are compared with one set of manifests")
        refuse_given(("config_file", "templates", "family", "ipv6_affinity"), "is for a single node")
        sys.exit(_of_nodes(asked, paths, strict))
    if live:
        transaction = _from_kernel(_live_pipeline(paths, strict, AgentClient(agent_socket, timeout), **options))
    else:
        transaction = _from_manifests(paths, strict, **options)
    sys.stdout.write(transaction.text)
    sys.exit(1 if transaction else 0)


def _of_nodes(asked: NodesAsked, paths: Sequence[Path], strict: bool) -> int:
    """Print the merged differences of many nodes, and return the exit status: 1 for a node without an answer, too."""
    from nftproxy.fleet.inventory import WITH_NET_ADMIN
    from nftproxy.fleet.merged_changes import MergedChanges

    merged = MergedChanges()
    manifests = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": _sent(paths, strict)})
    command = (*WITH_NET_ADMIN, "diff", "--live", "-")
    outcomes = asked._replace(start=COMPARISON).answers(command, merged.take, manifests)
    click.echo("".join(f"{_shown(line)}\n" for line in merged.text()), nl=False)
    return 0 if report_failures(outcomes) and not merged.differs else 1


def _shown(line: str) -> str:
    """Escape what a terminal may not print in a line of a transaction, except for tabs."""
    return "\t".join(map(printable, line.split("\t")))


def _sent(paths: Sequence[Path], strict: bool) -> list[Mapping[str, Any]]:
    """Return the objects in manifests that rules depend on, and print their faults as warnings.

    Raises:
        BadInput: there is a fault, and `strict` is set.
    """
    kinds = kinds_for("", OPTIONS)
    problems: list[Problem] = []
    found = [(each, str(path)) for path in paths for each in load_documents([path], problems)]
    for document, path in found:
        parse_manifest(document, path, problems, kinds=kinds)
    report(problems, strict)
    return [document for document, _ in found if document.get("kind") in kinds]


def _from_manifests(paths: tuple[Path, ...], strict: bool, **options: Any) -> Transaction:
    if len(paths) != 2:
        raise click.UsageError("give two sets of manifests, OLD and NEW, or one with --live")
    if not options["node"]:
        raise click.UsageError("without --live give --node NAME, the node that the rules are for")
    old, new = paths
    cluster = offline_cluster([old], strict=strict, **options)
    return cluster.pipeline.ingest(loaded([new], cluster.pipeline.settings.config, strict).listing())


def _live_pipeline(paths: tuple[Path, ...], strict: bool, agent: AgentClient, **options: Any) -> Pipeline:
    """The pipeline of this node with the manifests applied."""
    if options["node"]:
        return offline_cluster(list(paths), strict=strict, **options).pipeline
    refuse_given(("config_file", "ipv6_affinity"), "needs --node: without --node the agent's own configuration is used")
    facts = agent.get(NodeInputs, "/v1/node")
    (document,) = msgspec.json.decode(facts.configuration).values()
    config, _ = parse_config(document, "the agent", FIELDS)
    wanted = options["family"]
    families = [family for family in map(Family, facts.families) if wanted in (None, family.value)]
    settings = Settings(config, Capabilities(wide_maps=facts.wide_maps), INSTALLED)
    pipeline = Pipeline(facts.name, settings, renderer(options["templates"]), families)
    pipeline.ingest(_node_events(facts))
    listing = loaded(paths, config, strict).listing()
    pipeline.ingest(each for each in listing if isinstance(each, Listed) and _counts(each))
    return pipeline


def _counts(listed: Listed) -> bool:
    """True if the manifests replace the node's objects of a kind.  Without a Node in them, the node's own stays."""
    return bool(listed.objects) or listed.kind in (Service, EndpointSlice)


def _node_events(facts: NodeInputs) -> Iterable[Event]:
    """The node as its agent sees it."""
    internal, external = (tuple(map(Address, each)) for each in (facts.internal_ips, facts.external_ips))
    yield Put(Node(facts.name, facts.zone, internal, external, tuple(map(parse_network, facts.pod_cidrs))))
    yield Put(ServiceCIDR("of the agent", tuple(map(parse_network, facts.service_cidrs))))
    if facts.host_addresses is not None:
        yield Put(HostAddresses(frozenset(map(Address, facts.host_addresses))))
    yield Put(ApiServers(frozenset(Place(Address(address), port) for address, port in facts.api_servers)))


def _from_kernel(pipeline: Pipeline) -> Transaction:
    """The transaction from the kernel's elements to the pipeline's."""
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


def difference(generation: Generation, containers: Iterable[Container], held: Iterable[Element]) -> GenerationChange:
    """Return the change from the kernel's containers and elements to a generation.

    Chains and maps that the agent keeps although nothing uses them, and their elements, are no difference.
    """
    change = GenerationChange()
    used = generation.used_declarations()
    present = {(container.kind, container.name) for container in containers}
    change.declared.update({identity: each for identity, each in used.items() if identity not in present})
    leading = {entry.container for each in used.values() for entry in each.entries}
    declared = {each.name for each in used.values() if each.kind is not NftKind.CHAIN}
    wanted = set(generation.used_elements())
    known = {_normal(element) for element in held}
    for element in sorted(known - {_normal(each) for each in wanted}):
        if element.container in declared - leading:
            change.remove(element.line)
    for element in sorted(each for each in wanted if _normal(each) not in known):
        change.add(element.line)
    return change


def _normal(element: Element) -> Element:
    """The element as the kernel prints it, which omits the length of a range of a single address."""
    width = "/128" if ":" in element.key else "/32"
    return msgspec.structs.replace(
        element, key=" . ".join(part.removesuffix(width) for part in element.key.split(" . "))
    )
