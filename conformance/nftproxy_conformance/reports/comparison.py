"""The report of an operator's own cluster: the connections that a proxy treats differently from nftproxy's rules.

Differences are grouped by their explanation, a documented deviation from kube-proxy, or else by the broken rule.  The
verdict fails if any difference has no explanation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click

from nftproxy.commands.output import STRUCTURED, structured
from nftproxy_conformance.lab import Probe
from nftproxy_conformance.reports.words import any_of, as_json, connection
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import rule_of
from nftproxy_conformance.specification.world import place_of, virtual_ips
from nftproxy_conformance.trials.own import OwnCluster, flows
from nftproxy_conformance.trials.trial import ELSEWHERE, Difference, Trial

MOST_SHOWN = 20
"""Connections of a group in the text.  --output json has all."""
DEVIATIONS = "semantics.md#deviations-from-kube-proxy"


class Comparison(NamedTuple):
    """The result for a cluster: its connections, and their differences."""

    cluster: OwnCluster
    probes: list[Probe]
    differences: list[Difference]

    @property
    def unexplained(self) -> list[Difference]:
        """The differences that no deviation explains: the verdict."""
        return [each for each in self.differences if not each.deviation]


def compare(trial: Trial, cluster: OwnCluster) -> Comparison:
    """Try the connections of a cluster.

    A difference counts if it remains when the proxy has applied all changes.

    Raises: as `Trial.load` does.
    """
    trial.load(cluster.world)
    wanted = flows(cluster.world)
    found = trial.all_differences(cluster.world, wanted)
    if any(not each.deviation for each in found) and trial.subject.settle():
        found = trial.all_differences(cluster.world, wanted)
    return Comparison(cluster, wanted, found)


def show(comparison: Comparison, *, output: str) -> bool:
    """Print a comparison.  True if all differences are explained."""
    click.echo(structured(document(comparison), output) if output in STRUCTURED else _text(comparison))
    return not comparison.unexplained


def _text(comparison: Comparison) -> str:
    world, oracle = comparison.cluster.world, Oracle(comparison.cluster.world)
    pods = sum(len(each.endpoints.states) for each in world.slices)
    return "\n".join(
        [
            f"node {world.node.name}: {len(world.services):,} Services, {pods:,} endpoints, "
            f"{len(comparison.probes):,} connections",
            *_groups(comparison, oracle),
            _verdict(comparison),
        ]
    )


def _groups(comparison: Comparison, oracle: Oracle) -> Iterable[str]:
    for title, found in sorted(_grouped(comparison.differences, oracle).items()):
        yield ""
        yield f"{len(found):,} connections: {title}"
        for each in found[:MOST_SHOWN]:
            yield from _lines(each, oracle)
        if len(found) > MOST_SHOWN:
            yield f"  ... and {len(found) - MOST_SHOWN:,} more, which --output json shows"
    yield ""


def _grouped(differences: Iterable[Difference], oracle: Oracle) -> Mapping[str, list[Difference]]:
    groups: dict[str, list[Difference]] = defaultdict(list)
    for each in differences:
        rule = rule_of(oracle, each.probe, each.seen, each.what)
        why = f"explained by {each.deviation} ({DEVIATIONS})" if each.deviation else f"not explained; {rule}"
        groups[why].append(each)
    return groups


def _lines(difference: Difference, oracle: Oracle) -> Iterable[str]:
    yield f"  {connection(difference.probe)}{_whose(difference.probe, oracle)}"
    yield f"    must be: {any_of(difference.expected)}"
    yield f"    was:     {any_of(difference.seen)}{'' if difference.what == ELSEWHERE else f' ({difference.what})'}"
    if difference.ours:
        yield f"    nftproxy: {any_of(difference.ours)}"


def _whose(probe: Probe, oracle: Oracle) -> str:
    name = _service(probe, oracle)
    return f", Service {name}" if name else ""


def _service(probe: Probe, oracle: Oracle) -> str:
    front = oracle.front_of(place_of(probe)) if probe.port else None
    owners = (each for each in oracle.world.services if probe.address in virtual_ips(each))
    service = front.service if front else next(owners, None)
    return str(service.key) if service else ""


def _verdict(comparison: Comparison) -> str:
    if not comparison.differences:
        return "no connection goes otherwise than nftproxy's rules say"
    explained = len(comparison.differences) - len(comparison.unexplained)
    return f"{explained:,} differences are explained, {len(comparison.unexplained):,} are not"


def document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON has it."""
    oracle = Oracle(comparison.cluster.world)
    return {
        "verdict": "fail" if comparison.unexplained else "pass",
        "node": comparison.cluster.world.node.name,
        "services": len(comparison.cluster.world.services),
        "connections": len(comparison.probes),
        "problems": [each.coded for each in comparison.cluster.problems],
        "differences": [_difference(each, oracle) for each in comparison.differences],
    }


def _difference(difference: Difference, oracle: Oracle) -> dict[str, Any]:
    return {"service": _service(difference.probe, oracle)} | as_json(difference, oracle)
