"""Write a generation for review: a file that `nft -f` loads, ordered and commented.

The order is that of the table template, with the declarations that Services share in its middle.  Each element names
its Service, and each comment of a template appears once in a table.  The top lists facts that the rules don't show,
with the reason: addresses that lost a conflict, skipped objects, preferences that can't be followed.  Comments contain
names that were checked when they were parsed, and bounded messages without control characters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nftproxy.explanation.explained_extension import words_of
from nftproxy.model.addresses import TABLE, Family, of_family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.objects import Ignored, TrafficDistribution, TrafficPolicy
from nftproxy.model.texts import printable
from nftproxy.pipeline import SKELETON, Pipeline
from nftproxy.policy.choosing.choice import why_not_near
from nftproxy.policy.compile import PortKey
from nftproxy.policy.extension import Settings
from nftproxy.rules.ruleset import Declaration, Element, Generation, NftKind, Owner

_COMMENT_LENGTH = 300
"""The longest comment, for readers: nft has no such limit."""

_SHARED = "# ---- where endpoints are, and how one is drawn ---------------------------------------------------------"
"""The heading of the declarations in endpoints.nft.j2 and draw.nft.j2, in the form of the table template's headings."""


def review(pipeline: Pipeline, problems: Sequence[Problem], ignored: Sequence[Ignored]) -> Iterator[str]:
    """The whole text, in pieces: the notes, then a table for each family."""
    yield _comment(f"nftproxy: rules for node {pipeline.state.node.name}")
    yield from map(_comment, notes(pipeline, problems, ignored))
    for generation in pipeline.generations.values():
        yield "\n"
        yield from _table(generation)
    yield from (f"\n{each.text}" for each in pipeline.whole_tables.values())


def notes(pipeline: Pipeline, problems: Sequence[Problem], ignored: Sequence[Ignored]) -> Iterator[str]:
    """Facts that the rules don't show, a line each."""
    yield from (f"skipped: {item.object}: {item.reason}" for item in ignored)
    yield from (f"bad input: {problem.coded}" for problem in problems)
    for lost in pipeline.losses.all():
        why = lost.why(pipeline.state.claims)
        yield f"conflict: {lost.denial.code}: {lost.service_port} does not get {lost.what}: {why}"
    for key, excess in sorted(pipeline.state.excessive.items()):
        yield f"quarantined: {excess.code}: {key}: {excess.reason}"
    yield from _topology_notes(pipeline)
    yield from (note for each in words_of(pipeline) for note in each.noted(pipeline))
    yield from _affinity_notes(pipeline, pipeline.settings)


def _topology_notes(pipeline: Pipeline) -> Iterator[str]:
    """Services that ask for near endpoints and get all of them on this node.

    Those whose fronts all use the node's own endpoints get none of the rest.  With externalTrafficPolicy Local alone,
    pods and the node still use the rest.
    """
    state = pipeline.state
    asking = (each for each in state.services.values() if each.traffic_distribution is not TrafficDistribution.NONE)
    for service in sorted(asking, key=lambda each: each.key):
        if service.internal_policy is TrafficPolicy.LOCAL and not service.is_external:
            continue
        endpoints = {family: state.endpoints_of(service, family) for family in pipeline.generations}
        for port, family in itertools.product(service.ports, pipeline.generations):
            why = why_not_near(endpoints[family], port)
            if why:
                wish = f"trafficDistribution {service.traffic_distribution.value}"
                which = f"{service.key}, port {port.port}"
                yield f"topology: {Code.TOPOLOGY_UNUSED}: {which}: uses all endpoints in spite of {wish}: {why}"
                break


def _affinity_notes(pipeline: Pipeline, settings: Settings) -> Iterator[str]:
    if Family.IPV6 not in pipeline.generations or settings.capabilities.wide_maps:
        return
    sticky = (each for each in pipeline.state.services.values() if each.affinity_timeout is not None)
    if any(of_family(each.cluster_ips, Family.IPV6) for each in sticky):
        how = "by a hash of the client's address; nft before 1.1 can't remember IPv6 clients"
        yield f"session affinity, IPv6: {Code.AFFINITY_BY_HASH}: {how}"


def _table(generation: Generation) -> Iterator[str]:
    yield f'table {generation.family.table} {{\n  comment "{TABLE}"\n'
    owners = _owners(generation)
    skeleton = dict.fromkeys(generation.blocks[SKELETON].declarations)
    shared = sorted(set(generation.used_declarations().values()) - skeleton.keys(), key=lambda d: d.name)
    said: set[tuple[str, ...]] = set()
    yield from _declarations(filter(_has_elements, skeleton), owners, said)
    if shared:
        yield f"\n  {_SHARED}"  # as a comment of the next declaration
    yield from _declarations(filter(_has_elements, shared), owners, said)
    yield from _declarations(itertools.filterfalse(_has_elements, shared), {}, said)
    yield from _declarations(itertools.filterfalse(_has_elements, skeleton), {}, said)
    yield "}\n"


def _has_elements(declaration: Declaration) -> bool:
    return declaration.kind is not NftKind.CHAIN


def _owners(generation: Generation) -> dict[str, dict[str, list[str]]]:
    """The owners of each element's text, by container, in their order.  Entries of declarations have no owner."""
    containers: dict[str, dict[str, list[str]]] = {}
    for entry in _entries(generation):
        containers.setdefault(entry.container, {})[entry.text] = []
    for owner, block in sorted(generation.blocks.items(), key=lambda item: _owner_order(item[0])):
        name = printable(str(owner))
        for line in block.lines:
            container, _, text = line.partition(" ")
            containers.setdefault(container, {}).setdefault(text, []).append(name)
    return containers


def _entries(generation: Generation) -> Iterator[Element]:
    """The elements that come with declarations, in the order of the declarations' names."""
    declared = sorted(generation.used_declarations().values(), key=lambda each: each.name)
    return itertools.chain.from_iterable(each.entries for each in declared)


def _owner_order(owner: Owner) -> tuple[str, ...]:
    if isinstance(owner, PortKey):
        return owner.service.namespace, owner.service.name, owner.name, owner.protocol.value
    return ()


def _owner_text(owners: Sequence[str]) -> str:
    """The Service ports of an element: the first three, and how many more."""
    if len(owners) == 1:
        return owners[0]
    names = list(dict.fromkeys(owners))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _declarations(
    declarations: Iterable[Declaration],
    owners: Mapping[str, Mapping[str, Sequence[str]]],
    said: set[tuple[str, ...]],
) -> Iterator[str]:
    """Declarations with their elements, without comments that are in `said` already."""
    for declaration in declarations:
        yield "\n"
        if declaration.comments not in said:
            yield from (f"  {comment}\n" for comment in declaration.comments)
            said.add(declaration.comments)
        yield f"  {declaration.kind.value} {declaration.name} {{\n"
        yield from (f"    {line}\n" for line in declaration.body)
        yield from _elements(owners.get(declaration.name, {}))
        yield "  }\n"


def _elements(elements: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The elements of a set or map.  Elements of the node itself and shared elements name no owner."""
    if elements:
        yield "    elements = {\n"
        for text, owners in elements.items():
            owner = "" if owners in ([], [SKELETON]) else f"  # {_owner_text(owners)}"
            yield f"      {text},{owner}\n"
        yield "    }\n"


def _comment(text: str) -> str:
    """A comment line."""
    shown = printable(text)
    shortened = shown if len(shown) <= _COMMENT_LENGTH else shown[: _COMMENT_LENGTH - 3] + "..."
    return f"# {shortened}\n"
