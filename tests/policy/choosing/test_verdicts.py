"""The endpoints that serve a port (semantics of KEP-1669, KEP-2086, KEP-2433 and KEP-3015), and why."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies import quick
from nftproxy_conformance.strategies.objects import nodes, slices

from nftproxy.model.addresses import Address
from nftproxy.model.objects import EndpointSlice, Node, Place
from nftproxy.policy.choosing.verdicts import Candidate, Choice, ChoiceReason, EndpointVerdict, decide
from tests.policy.choosing.makers import candidates
from tests.support.factories import endpoint, node, slice_of

R = ChoiceReason


def choice(*endpoints: str, at: Node | None = None) -> Choice:
    """The choice among the endpoints of a slice."""
    return decide(candidates(slice_of(endpoints=endpoints)), at or node())


def hosts(chosen: Sequence[Candidate]) -> str:
    """The last numbers of the endpoints' addresses, by which the tables below tell endpoints apart."""
    return " ".join(candidate.address.rpartition(".")[2] for candidate in chosen)


@pytest.mark.parametrize(
    ("drained", "others", "cluster", "local"),
    [
        (["10.1.0.1@node-a"], ["10.1.0.2@node-b"], "2", ""),
        (["10.1.0.1@node-a"], [], "", ""),
        (["10.1.0.1@node-a"], ["10.1.0.2@node-a draining"], "2", "2"),
        (["10.1.0.1@node-a draining"], ["10.1.0.2@node-a draining"], "2", "2"),
        (["10.1.0.1@node-a"], ["10.1.0.2@node-a zone=b", "10.1.0.3@node-b zone=a"], "3", "2"),
        (["10.1.0.1@node-a zone=a"], ["10.1.0.2@node-a zone=b"], "2", "2"),
    ],
)
def test_drained_endpoints_are_off_both_lists(drained: list[str], others: list[str], cluster: str, local: str) -> None:
    """Weight 0 takes an endpoint off both lists, and the rest are judged without it."""
    slices = [slice_of(endpoints=drained, weight=0), slice_of(endpoints=others, suffix="2")]
    chosen = decide(candidates(*slices), node())
    assert (hosts(chosen.cluster), hosts(chosen.local)) == (cluster, local)
    assert chosen.verdicts[0].cluster is R.DRAINED


# Conditions


@pytest.mark.parametrize(
    ("ready", "serving", "terminating", "reason"),
    [
        (True, True, False, R.READY),
        (True, False, False, R.READY),
        (True, True, True, R.READY),
        (True, False, True, R.READY),
        (False, True, True, R.LAST_RESORT),
        (False, True, False, R.NOT_READY),
        (False, False, True, R.NOT_READY),
        (False, False, False, R.NOT_READY),
    ],
)
def test_an_endpoint_is_usable_if_ready_or_draining(
    ready: bool, serving: bool, terminating: bool, reason: ChoiceReason
) -> None:
    """An endpoint is usable only if it is ready, or serving while it terminates."""
    only = endpoint("10.1.0.4@node-a", ready=ready, serving=serving, terminating=terminating)
    chosen = decide(candidates(slice_of(endpoints=[only])), node())
    assert [(verdict.cluster, verdict.local) for verdict in chosen.verdicts] == [(reason, reason)]
    assert chosen.has_endpoints is reason.is_choice


@pytest.mark.parametrize(
    ("endpoints", "cluster", "local"),
    [
        ([], "", ""),
        (["10.1.0.1@node-a", "10.1.0.2@node-b"], "1 2", "1"),
        (["10.1.0.1@node-b", "10.1.0.2@node-b"], "1 2", ""),
        (["10.1.0.1", "10.1.0.2@node-a"], "1 2", "2"),
        (["10.1.0.1@node-a unready", "10.1.0.2@node-b"], "2", ""),
        (["10.1.0.1@node-a draining", "10.1.0.2@node-b"], "2", "1"),
        (["10.1.0.1@node-a draining", "10.1.0.2@node-a", "10.1.0.3@node-b"], "2 3", "2"),
        (["10.1.0.1@node-b", "10.1.0.2@node-a", "10.1.0.3@node-a draining"], "1 2", "2"),
        (["10.1.0.1@node-a draining", "10.1.0.2@node-b draining"], "1 2", "1"),
        (["10.1.0.1@node-a stopped", "10.1.0.2@node-b draining"], "2", ""),
        (["10.1.0.1@node-a serving", "10.1.0.2@node-b draining"], "2", ""),
        (["10.1.0.1@node-a unready", "10.1.0.2@node-b stopped"], "", ""),
        (["10.1.0.1@node-a published", "10.1.0.2@node-b draining"], "1", "1"),
    ],
)
def test_terminating_endpoints_are_the_last_resort(endpoints: list[str], cluster: str, local: str) -> None:
    """Each list without ready endpoints falls back by itself to endpoints that serve while they terminate."""
    chosen = choice(*endpoints)
    assert (hosts(chosen.cluster), hosts(chosen.local)) == (cluster, local)
    assert chosen.has_endpoints is bool(cluster)


# Topology


@pytest.mark.parametrize(
    ("endpoints", "cluster"),
    [
        # zones
        (["10.1.0.1 zone=a", "10.1.0.2 zone=b"], "1"),
        (["10.1.0.1 zone=a,b", "10.1.0.2 zone=b"], "1"),
        (["10.1.0.1 zone=b", "10.1.0.2 zone=b"], "1 2"),
        (["10.1.0.1 zone=a", "10.1.0.2"], "1 2"),
        # only the ready ones count, and only they are ruled out
        (["10.1.0.1 zone=a", "10.1.0.2 draining"], "1"),
        (["10.1.0.1 zone=a", "10.1.0.2 unready", "10.1.0.3 zone=b"], "1"),
        (["10.1.0.1 zone=a unready", "10.1.0.2 zone=b"], "2"),
        (["10.1.0.1 zone=a draining", "10.1.0.2 zone=b draining"], "1 2"),
        # nodes come before zones, and zones count where no node is named
        (["10.1.0.1 node=node-a", "10.1.0.2 node=node-b"], "1"),
        (["10.1.0.1 node=node-a zone=b", "10.1.0.2 node=node-b zone=a"], "1"),
        (["10.1.0.1 node=node-b zone=b", "10.1.0.2 node=node-b zone=a"], "2"),
        (["10.1.0.1 node=node-a zone=b", "10.1.0.2 zone=a"], "2"),
        (["10.1.0.1 node=node-a", "10.1.0.2 zone=a"], "1 2"),
    ],
)
def test_topology_is_by_hints_and_all_or_nothing(endpoints: list[str], cluster: str) -> None:
    """Hints count if all ready endpoints have them and any names this node, else its zone, or else all serve."""
    assert hosts(choice(*endpoints).cluster) == cluster


def test_a_node_without_a_zone_has_no_zone_mode() -> None:
    """Zone hints mean nothing to a node without the label, whichever zone they name."""
    chosen = choice("10.1.0.1 zone=a", "10.1.0.2 zone=b", at=node(zone=""))
    assert hosts(chosen.cluster) == "1 2"


def test_an_empty_zone_hint_matches_no_node() -> None:
    """A zone hint that names nothing doesn't name the zone of a node that has none."""
    hinted = [endpoint("10.1.0.1", zone_hints=("",)), endpoint("10.1.0.2 zone=a")]
    assert hosts(decide(candidates(slice_of(endpoints=hinted)), node(zone="")).cluster) == "1 2"


def test_a_node_without_a_zone_has_node_hints_still() -> None:
    """Node hints need no zone label."""
    chosen = choice("10.1.0.1 node=node-a", "10.1.0.2 node=node-b", at=node(zone=""))
    assert hosts(chosen.cluster) == "1"


def test_topology_is_never_applied_to_the_local_list() -> None:
    """A local ready endpoint that is meant for another zone is on the local list all the same."""
    chosen = choice("10.1.0.1@node-a zone=b", "10.1.0.2@node-b zone=a")
    assert (hosts(chosen.cluster), hosts(chosen.local)) == ("2", "1")


# ChoiceReasons


@pytest.mark.parametrize(
    ("endpoints", "reasons"),
    [
        (["10.1.0.1@node-a", "10.1.0.2@node-b"], [(R.READY, R.READY), (R.READY, R.OTHER_NODE)]),
        (["10.1.0.1@node-a draining", "10.1.0.2@node-b"], [(R.TERMINATING, R.LAST_RESORT), (R.READY, R.OTHER_NODE)]),
        (["10.1.0.1@node-a draining", "10.1.0.2@node-a"], [(R.TERMINATING, R.TERMINATING), (R.READY, R.READY)]),
        (["10.1.0.1@node-a unready"], [(R.NOT_READY, R.NOT_READY)]),
        (
            ["10.1.0.1@node-a zone=b", "10.1.0.2 zone=a"],
            [(R.OTHER_ZONE_HINT, R.READY), (R.READY, R.NO_NODE)],
        ),
        (
            ["10.1.0.1 node=node-a", "10.1.0.2 node=node-b"],
            [(R.READY, R.NO_NODE), (R.OTHER_NODE_HINT, R.NO_NODE)],
        ),
    ],
)
def test_each_endpoint_gets_a_reason_for_each_list(endpoints: list[str], reasons: list[tuple[R, R]]) -> None:
    """Each endpoint gets a reason for the cluster list and a reason for the local list."""
    assert [(verdict.cluster, verdict.local) for verdict in choice(*endpoints).verdicts] == reasons


@quick()
@given(st.lists(slices, max_size=4), nodes)
def test_both_lists_equal_a_plain_implementation(drawn: list[EndpointSlice], at: Node) -> None:
    """For any endpoints, both lists equal a plain implementation of the rules, and verdicts agree."""
    for port in ["80", "80/udp", "web:80", "dns:53/udp"]:
        all_ = candidates(*drawn, port=port, at=at)
        chosen = decide(all_, at)
        taking = [candidate for candidate in all_ if candidate.weight]
        assert list(chosen.cluster) == _cluster_list(taking, at)
        assert list(chosen.local) == _usable([candidate for candidate in taking if candidate.is_local])
        assert chosen.has_endpoints is bool(_usable(taking))
        assert chosen.verdicts == tuple(
            EndpointVerdict(candidate, verdict.cluster, verdict.local)
            for candidate, verdict in zip(all_, chosen.verdicts, strict=True)
        )
        assert [v.candidate for v in chosen.verdicts if v.cluster.is_choice] == list(chosen.cluster)
        assert [v.candidate for v in chosen.verdicts if v.local.is_choice] == list(chosen.local)


@pytest.mark.parametrize(
    ("silent", "cluster", "local", "reasons"),
    [
        ("", "1 2 3 4 5", "1 2", [R.READY] * 5),
        ("3", "1 2 4 5", "1 2", [R.READY, R.READY, R.LEFT_OUT, R.READY, R.READY]),
        ("1", "2 3 4 5", "2", [R.LEFT_OUT, R.READY, R.READY, R.READY, R.READY]),
        ("5 3", "1 2 4", "1 2", [R.READY, R.READY, R.LEFT_OUT, R.READY, R.LEFT_OUT]),
        ("5 3 4", "1 2 4", "1 2", [R.READY, R.READY, R.LEFT_OUT, R.NEEDED, R.LEFT_OUT]),
        ("2 1 9", "3 4 5", "1", [R.LEFT_OUT, R.LEFT_OUT, R.READY, R.READY, R.READY]),
    ],
)
def test_silent_endpoints_are_left_out(silent: str, cluster: str, local: str, reasons: list[ChoiceReason]) -> None:
    """Silent endpoints are on neither list, up to half of each list, the longest silent first."""
    all_ = [f"10.1.0.{number}@{'node-a' if number < 3 else 'node-b'}" for number in range(1, 6)]
    places = [Place(Address(f"10.1.0.{number}"), 8080) for number in silent.split()]
    chosen = decide(candidates(slice_of(endpoints=all_, ports=["http:8080"])), node(), places)
    assert (hosts(chosen.cluster), hosts(chosen.local)) == (cluster, local)
    assert [verdict.cluster for verdict in chosen.verdicts] == reasons
    assert [verdict.local for verdict in chosen.verdicts if not verdict.candidate.is_local] == [R.OTHER_NODE] * 3


@quick()
@given(st.lists(slices, max_size=4), nodes, st.data())
def test_never_more_than_half_of_a_list_is_left_out(drawn: list[EndpointSlice], at: Node, data: st.DataObject) -> None:
    """A list with endpoints keeps at least half of them, and loses only silent endpoints."""
    for port in ["80", "web:80"]:
        all_ = candidates(*drawn, port=port, at=at)
        places = [Place(each.address, each.port) for each in all_]
        silent = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
        before, after = decide(all_, at), decide(all_, at, silent)
        for old, new in ((before.cluster, after.cluster), (before.local, after.local)):
            gone = [Place(each.address, each.port) for each in old if each not in new]
            had = [Place(each.address, each.port) for each in old]
            assert gone == sorted([place for place in silent if place in had][: len(old) // 2], key=had.index)
            assert set(new) <= set(old)
            assert bool(new) is bool(old)
        assert [v.candidate for v in after.verdicts if v.cluster.is_choice] == list(after.cluster)
        assert after.has_endpoints is before.has_endpoints


def _usable(all_: list[Candidate]) -> list[Candidate]:
    return [each for each in all_ if each.is_ready] or [each for each in all_ if each.is_last_resort]


def _cluster_list(all_: list[Candidate], at: Node) -> list[Candidate]:
    usable = _usable(all_)
    if not any(candidate.is_ready for candidate in usable):
        return usable
    if all(candidate.node_hints for candidate in usable):
        named = [candidate for candidate in usable if at.name in (candidate.node_hints or ())]
        if named:
            return named
    if at.zone and all(candidate.zone_hints for candidate in usable):
        return [candidate for candidate in usable if at.zone in (candidate.zone_hints or ())] or usable
    return usable
