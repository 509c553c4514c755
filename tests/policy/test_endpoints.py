"""Which endpoints serve a port (semantics of KEP-1669, KEP-2086, KEP-2433 and KEP-3015), and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.conformance.strategies import nodes, quick, slices
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.annotations import ServiceOptions
from nftproxy.model.objects import EndpointPort, EndpointSlice, Node, Place
from nftproxy.policy.endpoints import Candidate, Choice, Reason, Verdict, choice_for, choose, gather, offers
from tests.support.factories import IPV4, IPV6, endpoint, node, service, service_port, slice_of

R = Reason


def candidates(*slices: EndpointSlice, port: str = "http:80") -> list[Candidate]:
    """The candidates for an IPv4 port, as node-a sees them."""
    return gather(offers(service(), slices, IPV4), service_port(port), "node-a")


def choice(*endpoints: str, at: Node | None = None) -> Choice:
    """The choice among the endpoints of one slice."""
    return choose(candidates(slice_of(endpoints=endpoints)), at or node())


def hosts(chosen: Sequence[Candidate]) -> str:
    """The last numbers of their addresses: the tables below tell endpoints by these."""
    return " ".join(candidate.address.rpartition(".")[2] for candidate in chosen)


# Joining


@pytest.mark.parametrize(
    ("port", "slice_ports", "found"),
    [
        ("http:80", ["http:8080"], ["10.1.0.4:8080"]),
        ("http:80", ["http:8080", "admin:9090"], ["10.1.0.4:8080"]),
        ("http:80", ["http:8080/udp"], []),
        ("http:80/sctp", ["http:8080/tcp", "http:8081/sctp"], ["10.1.0.4:8081"]),
        ("http:80", ["8080"], []),
        ("80", ["8080"], ["10.1.0.4:8080"]),
        ("80", ["http:80"], []),
        ("http:80", [], []),
    ],
)
def test_endpoints_join_by_port_name_and_protocol(port: str, slice_ports: list[str], found: list[str]) -> None:
    """A slice's port is a Service port's if name (the empty one too) and protocol agree; its number is what counts."""
    chosen = candidates(slice_of(endpoints=["10.1.0.4@node-a"], ports=slice_ports), port=port)
    assert [f"{candidate.address}:{candidate.port}" for candidate in chosen] == found


def test_endpoints_join_by_family() -> None:
    """A slice of the other family has nothing for this one."""
    both = slice_of(endpoints=["10.1.0.4"]), slice_of(endpoints=["fd00:1::4"], suffix="2")
    port = service_port("http:80")
    assert [candidate.address for candidate in gather(offers(service(), both, IPV4), port, "node-a")] == ["10.1.0.4"]
    assert [candidate.address for candidate in gather(offers(service(), both, IPV6), port, "node-a")] == ["fd00:1::4"]


def test_one_address_with_two_ports_is_two_endpoints() -> None:
    """Slices that differ in the number of a port add up, be it for the same pod."""
    found = candidates(
        slice_of(endpoints=["10.1.0.4"], ports=["http:8080"]),
        slice_of(endpoints=["10.1.0.4"], ports=["http:8081"], suffix="2"),
    )
    assert [candidate.port for candidate in found] == [8080, 8081]


@pytest.mark.parametrize(
    ("node_name", "is_local"),
    [("@node-a", True), ("@node-b", False), ("@node-", False), ("@NODE-A", False), ("", False)],
)
def test_an_endpoint_is_local_by_its_node_name(node_name: str, is_local: bool) -> None:
    """Local is what names this very node; without a nodeName an endpoint is nowhere."""
    assert candidates(slice_of(endpoints=[f"10.1.0.4{node_name}"]))[0].is_local is is_local


def test_without_a_node_name_nothing_is_local() -> None:
    """An endpoint without a nodeName isn't local even where this node's name is not known."""
    found = gather(offers(service(), [slice_of(endpoints=["10.1.0.4"])], IPV4), service_port("http:80"), "")
    assert not found[0].is_local


@pytest.mark.parametrize(
    ("one", "other", "winner"),
    [
        ("ready", "draining", "ready"),
        ("ready", "published-draining", "ready"),
        ("unready", "draining", "unready"),
        ("serving", "published-draining", "serving"),
        ("ready", "unready", "ready"),
        ("draining", "stopped", "draining"),
        ("published-stopped", "draining", "published-stopped"),
    ],
)
def test_one_address_and_port_in_two_slices_is_one_endpoint(one: str, other: str, winner: str) -> None:
    """An entry that isn't terminating wins over one that is, then a ready one, then a serving one, in either order."""
    first, second, expected = (
        slice_of(endpoints=[f"10.1.0.4@node-a {word}".removesuffix(" ready")], suffix=word)
        for word in (one, other, winner)
    )
    assert candidates(first, second) == candidates(second, first) == candidates(expected)


@pytest.mark.parametrize("words", ["@node-a", " zone=a", " node=node-a", "@node-a zone=b node=node-b"])
def test_ghosts_that_differ_in_node_or_hints_are_one_endpoint(words: str) -> None:
    """Two ready entries for one ip:port count as one, the local one or that with hints, whichever comes first."""
    bare, told = slice_of(endpoints=["10.1.0.4"]), slice_of(endpoints=[f"10.1.0.4{words}"], suffix="2")
    assert candidates(bare, told) == candidates(told, bare) == candidates(told)


@quick()
@given(st.lists(slices, max_size=4).flatmap(lambda drawn: st.tuples(st.just(drawn), st.permutations(drawn))))
def test_the_order_of_slices_does_not_matter(drawn: tuple[list[EndpointSlice], list[EndpointSlice]]) -> None:
    """However slices are ordered, and their endpoints in them, the same candidates come out in the same order."""
    first, second = drawn
    for port in map(service_port, ["80", "80/udp", "web:80"]):
        assert gather(offers(service(), first, IPV4), port, "node-a") == gather(
            offers(service(), second, IPV4), port, "node-a"
        )


# Weights


@pytest.mark.parametrize(
    ("weights", "own", "found"),
    [
        ((), None, [100, 100]),
        ((), 0, [0, 0]),
        ((), 7, [7, 7]),
        ((("a", 3),), None, [300, 100]),
        ((("a", 3), ("b", 0)), 50, [150, 0]),
        ((("c", 3),), 50, [50, 50]),
    ],
)
def test_weights(weights: tuple[tuple[str, int], ...], own: int | None, found: list[int]) -> None:
    """An endpoint weighs what its slice says, 100 if nothing, times what the Service says of its zone, 1 if nothing."""
    given = slice_of(endpoints=["10.1.0.1 in=a", "10.1.0.2 in=b"], weight=own)
    offered = offers(service(options=ServiceOptions(weights=weights)), [given], IPV4)
    assert [each.weight for each in gather(offered, service_port("http:80"), "node-a")] == found


def test_of_two_entries_the_lighter_counts() -> None:
    """An endpoint in two slices, alike but for their weights, has the lesser one: whoever drains it is heard."""
    both = [slice_of(endpoints=["10.1.0.1"], suffix=str(each), weight=each) for each in (5, 0, 9)]
    assert [each.weight for each in candidates(*both)] == [0]
    better = slice_of(endpoints=["10.1.0.1 serving"], suffix="worse", weight=3)
    assert [each.weight for each in candidates(both[0], better)] == [5]


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
def test_the_drained_are_as_if_they_were_not_there(
    drained: list[str], others: list[str], cluster: str, local: str
) -> None:
    """Weight 0 takes an endpoint off both lists, and readiness and topology of the others are judged without it."""
    slices = [slice_of(endpoints=drained, weight=0), slice_of(endpoints=others, suffix="2")]
    chosen = choose(candidates(*slices), node())
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
def test_what_is_usable(ready: bool, serving: bool, terminating: bool, reason: Reason) -> None:
    """Usable is what is ready, or serving while it terminates; nothing else ever is."""
    only = endpoint("10.1.0.4@node-a", ready=ready, serving=serving, terminating=terminating)
    chosen = choose(candidates(slice_of(endpoints=[only])), node())
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
    """Each list falls back to what serves while it terminates, by itself, if it has nothing ready."""
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
    """Hints count if every ready endpoint has them and one names this node, else this node's zone; else all serve."""
    assert hosts(choice(*endpoints).cluster) == cluster


def test_a_node_without_a_zone_has_no_zone_mode() -> None:
    """Zone hints mean nothing to a node without the label, whatever they say."""
    chosen = choice("10.1.0.1 zone=a", "10.1.0.2 zone=b", at=node(zone=""))
    assert hosts(chosen.cluster) == "1 2"


def test_a_hint_without_a_name_is_no_nodes() -> None:
    """A zone hint that names nothing doesn't name the zone of a node that has none."""
    hinted = [endpoint("10.1.0.1", zone_hints=("",)), endpoint("10.1.0.2 zone=a")]
    assert hosts(choose(candidates(slice_of(endpoints=hinted)), node(zone="")).cluster) == "1 2"


def test_a_node_without_a_zone_has_node_hints_still() -> None:
    """Node hints need no zone label."""
    chosen = choice("10.1.0.1 node=node-a", "10.1.0.2 node=node-b", at=node(zone=""))
    assert hosts(chosen.cluster) == "1"


def test_topology_is_never_applied_to_the_local_list() -> None:
    """A local ready endpoint that is meant for another zone is on the local list all the same."""
    chosen = choice("10.1.0.1@node-a zone=b", "10.1.0.2@node-b zone=a")
    assert (hosts(chosen.cluster), hosts(chosen.local)) == ("2", "1")


# Reasons


@pytest.mark.parametrize(
    ("endpoints", "reasons"),
    [
        (["10.1.0.1@node-a", "10.1.0.2@node-b"], [(R.READY, R.READY), (R.READY, R.OTHER_NODE)]),
        (["10.1.0.1@node-a draining", "10.1.0.2@node-b"], [(R.TERMINATING, R.LAST_RESORT), (R.READY, R.OTHER_NODE)]),
        (["10.1.0.1@node-a draining", "10.1.0.2@node-a"], [(R.TERMINATING, R.TERMINATING), (R.READY, R.READY)]),
        (["10.1.0.1@node-a unready"], [(R.NOT_READY, R.NOT_READY)]),
        (
            ["10.1.0.1@node-a zone=b", "10.1.0.2 zone=a"],
            [(R.OTHER_ZONE_HINT, R.READY), (R.READY, R.OTHER_NODE)],
        ),
        (
            ["10.1.0.1 node=node-a", "10.1.0.2 node=node-b"],
            [(R.READY, R.OTHER_NODE), (R.OTHER_NODE_HINT, R.OTHER_NODE)],
        ),
    ],
)
def test_each_endpoint_gets_a_reason_for_each_list(endpoints: list[str], reasons: list[tuple[Reason, Reason]]) -> None:
    """Why an endpoint is on a list or not is said for the cluster list and for the local one."""
    assert [(verdict.cluster, verdict.local) for verdict in choice(*endpoints).verdicts] == reasons


@quick()
@given(st.lists(slices, max_size=4), nodes)
def test_the_lists_are_as_the_rules_say(drawn: list[EndpointSlice], at: Node) -> None:
    """Whatever the endpoints, both lists are those that the rules, written down plainly, give; verdicts agree."""
    for port in map(service_port, ["80", "80/udp", "web:80", "dns:53/udp"]):
        all_ = gather(offers(service(), drawn, IPV4), port, at.name)
        chosen = choose(all_, at)
        taking = [candidate for candidate in all_ if candidate.weight]
        assert list(chosen.cluster) == _cluster_list(taking, at)
        assert list(chosen.local) == _usable([candidate for candidate in taking if candidate.is_local])
        assert chosen.has_endpoints is bool(_usable(taking))
        assert chosen.verdicts == tuple(
            Verdict(candidate, verdict.cluster, verdict.local)
            for candidate, verdict in zip(all_, chosen.verdicts, strict=True)
        )
        assert [v.candidate for v in chosen.verdicts if v.cluster.is_choice] == list(chosen.cluster)
        assert [v.candidate for v in chosen.verdicts if v.local.is_choice] == list(chosen.local)


@pytest.mark.parametrize(
    ("silent", "cluster", "local", "reasons"),
    [
        ("", "1 2 3 4 5", "1 2", [R.READY] * 5),
        ("3", "1 2 4 5", "1 2", [R.READY, R.READY, R.SILENT, R.READY, R.READY]),
        ("1", "2 3 4 5", "2", [R.SILENT, R.READY, R.READY, R.READY, R.READY]),
        ("5 3", "1 2 4", "1 2", [R.READY, R.READY, R.SILENT, R.READY, R.SILENT]),
        ("5 3 4", "1 2 4", "1 2", [R.READY, R.READY, R.SILENT, R.SILENT_BUT_NEEDED, R.SILENT]),
        ("2 1 9", "3 4 5", "1", [R.SILENT, R.SILENT, R.READY, R.READY, R.READY]),
    ],
)
def test_silent_endpoints_are_left_out(silent: str, cluster: str, local: str, reasons: list[Reason]) -> None:
    """Who doesn't answer is on neither list, up to half of each by itself, those that fell silent first."""
    all_ = [f"10.1.0.{number}@{'node-a' if number < 3 else 'node-b'}" for number in range(1, 6)]
    places = [Place(Address(f"10.1.0.{number}"), 8080) for number in silent.split()]
    chosen = choose(candidates(slice_of(endpoints=all_, ports=["http:8080"])), node(), places)
    assert (hosts(chosen.cluster), hosts(chosen.local)) == (cluster, local)
    assert [verdict.cluster for verdict in chosen.verdicts] == reasons


def test_only_tcp_ports_leave_silent_endpoints_out() -> None:
    """Silence is seen of TCP connections, so the same place by another protocol serves on."""
    offered = offers(service(), [slice_of(endpoints=["10.1.0.1", "10.1.0.2"], ports=["http:80", "http:80/udp"])], IPV4)
    silent = [Place(Address("10.1.0.1"), 80)]
    assert hosts(choice_for(service_port("http:80"), offered, node(), silent).cluster) == "2"
    assert hosts(choice_for(service_port("http:80/udp"), offered, node(), silent).cluster) == "1 2"


@quick()
@given(st.lists(slices, max_size=4), nodes, st.data())
def test_never_more_than_half_of_a_list_is_left_out(drawn: list[EndpointSlice], at: Node, data: st.DataObject) -> None:
    """Whoever is silent, a list that had endpoints keeps at least half of them, and only silent ones go."""
    for port in map(service_port, ["80", "web:80"]):
        all_ = gather(offers(service(), drawn, IPV4), port, at.name)
        places = [Place(each.address, each.port) for each in all_]
        silent = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
        before, after = choose(all_, at), choose(all_, at, silent)
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


class Looked(list[EndpointPort]):
    """A slice's ports that count how often each is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[EndpointPort]:
        for port in super().__iter__():
            Looked.looks += 1
            yield port


@pytest.mark.parametrize("count", [10, 100])
def test_each_port_of_a_slice_is_looked_at_once(count: int) -> None:
    """However many ports a Service has, the slices' ports are looked through once, and not once for each of them."""
    names = [f"p{number}" for number in range(count)]
    ports = Looked(EndpointPort(name, Protocol.TCP, 8080) for name in names)
    slices = [msgspec.structs.replace(slice_of(suffix=str(each)), ports=ports) for each in range(5)]
    Looked.looks = 0
    offered = offers(service(), slices, IPV4)
    found = [gather(offered, service_port(f"{name}:80"), "node-a") for name in names]
    assert {len(each) for each in found} == {2}
    assert Looked.looks == 5 * count
