"""The pure middle as a whole: the same objects give the same rules, and a change costs what it changes."""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.conformance.strategies import Given, all_settings, clusters, quick
from nftproxy.model.addresses import Family
from nftproxy.model.errors import TemplateError
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, ObjectKey, Service
from nftproxy.model.settings import Settings
from nftproxy.model.stages import Stage
from nftproxy.model.steps import Steps
from nftproxy.pipeline import SKELETON, STEP, STEP_ELEMENTS, Pipeline
from nftproxy.policy.compile import PortKey
from nftproxy.policy.facts import PortFacts, TableFacts
from nftproxy.policy.kept import MOST_AT_ONCE, Kept
from nftproxy.policy.numbers import as_address
from nftproxy.rules.render import TABLE_TEMPLATE, Renderer
from nftproxy.rules.ruleset import Block, Element, Kind
from nftproxy.rules.transaction import Transaction, join
from tests.support.crowds import Crowd, slices_of, steps
from tests.support.factories import (
    IPV4,
    IPV6,
    Ledger,
    elements,
    key,
    node,
    pipeline,
    renderer,
    service,
    service_cidr,
    slice_of,
    templates,
)

THREE = slice_of(endpoints=["10.1.1.4", "10.1.1.5", "10.1.1.6"])
TWO = slice_of(endpoints=["10.1.1.4", "10.1.1.5"])
ONE = slice_of(endpoints=["10.1.1.4"])

MOST_CALLS = 1_000
"""Calls of functions, built-in ones included, that a change of one endpoint of ten may take: 960 with Python 3.11, and
later versions take fewer.  It depends on nothing but what is done."""

MOST_CALLS_OF_A_THOUSAND = 4_500
"""The same for one endpoint of 1,000 in ten EndpointSlices, mean of 40 changes: 3,500, and 19,000 when each change was
decided from nothing."""


class Counting(Renderer):
    """A renderer that counts the blocks that it renders."""

    def __init__(self) -> None:
        super().__init__(templates())
        self.ports = self.tables = 0

    def table(self, facts: TableFacts) -> Block:
        """Count one."""
        self.tables += 1
        return super().table(facts)

    def port(self, facts: PortFacts, table: str) -> Block:
        """Count one."""
        self.ports += 1
        return super().port(facts, table)


def fresh(settings: Settings, objects: Iterable[Given]) -> Pipeline:
    """A pipeline that got all of these at once."""
    made = Pipeline("node-a", settings, renderer())
    made.apply([Put(each) for each in objects])
    return made


def ledger_of(*pipelines: Pipeline) -> Ledger:
    """What a kernel holds after each of these has loaded everything, one after the other."""
    ledger = Ledger()
    for made in pipelines:
        ledger.apply(made.full_transaction({family: ledger.installed(family) for family in Family}))
    return ledger


# Transactions


def test_adding_an_endpoint_is_two_elements() -> None:
    """Where the chain for that many is known, an endpoint more is its element, and a verdict that moves."""
    made = pipeline(service(), THREE)
    made.apply([Put(TWO)])
    assert made.apply([Put(THREE)]).text == (
        "delete element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.2 }\n"
        "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.3 }\n"
        "add element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.2 : 10.1.1.6 . 8080 }\n"
    )


def test_an_endpoint_of_a_thousand_that_goes_is_few_elements() -> None:
    """The others mostly keep their slots, and the rules are those of a node that never knew the endpoint."""
    pods = [f"10.{number % 7}.{number >> 8}.{number & 255}" for number in range(256, 1_256)]
    made = pipeline(service(), slice_of(endpoints=pods))
    found = []
    for gone in range(0, 1_000, 50):
        size = made.apply([Put(slice_of(endpoints=pods[:gone] + pods[gone + 1 :]))]).size()
        found.append(size.elements)
        made.apply([Put(slice_of(endpoints=pods))])
    assert sum(found) / len(found) < 150
    without = slice_of(endpoints=pods[1:])
    made.apply([Put(without)])
    there = {(each.container, each.key): each.value for each in made.generations[IPV4].used_elements()}
    anew = pipeline(service(), without).generations[IPV4].used_elements()
    assert there == {(each.container, each.key): each.value for each in anew}


def test_each_stage_is_a_lap() -> None:
    """Who keeps time hears of each stage of a change as it ends, of compiling and rendering once for each port."""
    made = pipeline(service(), THREE)
    laps: list[Stage] = []
    made.lap = laps.append
    made.apply([Put(TWO)])
    compiled = [Stage.COMPILE, Stage.RENDER]
    assert laps == [Stage.STATE, *compiled, Stage.DIFF, Stage.FOLLOW, Stage.DIFF]
    laps.clear()
    made.apply([Put(node(internal_ips=["192.0.2.77"]))])
    assert laps == [Stage.STATE, *compiled * 3, Stage.DIFF, Stage.FOLLOW, Stage.DIFF]


def test_removing_an_endpoint_is_two_elements() -> None:
    """An endpoint less is its element, and a verdict that moves; slot 0 is the last to go."""
    made = pipeline(service(), TWO)
    made.apply([Put(ONE)])
    assert elements(made, IPV4, "tcp-endpoints") == {"10.96.0.10 . 80 . 0.0.0.0": "10.1.1.4 . 8080"}
    assert made.apply([Put(slice_of(endpoints=[]))]).text == (
        "delete element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.1 }\n"
        "delete element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.0 : 10.1.1.4 . 8080 }\n"
        "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.0 }\n"
        "add element ip nftproxy no-endpoints { 10.96.0.10 . tcp . 80 }\n"
    )


def test_replacing_an_endpoint_is_one_element() -> None:
    """The same number of endpoints needs no verdict to move."""
    made = pipeline(service(), ONE)
    assert made.apply([Put(slice_of(endpoints=["10.1.1.5"]))]).text == (
        "delete element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.0 : 10.1.1.4 . 8080 }\n"
        "add element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.0 : 10.1.1.5 . 8080 }\n"
    )


def test_a_new_number_of_endpoints_is_a_new_chain() -> None:
    """The first Service with so many endpoints brings the chain that draws one, before the verdict that goes there."""
    transaction = pipeline(service(), ONE).apply([Put(TWO)])
    assert transaction.text.startswith(
        "add chain ip nftproxy tcp-endpoints-of-2\nflush chain ip nftproxy tcp-endpoints-of-2\ntable ip nftproxy {\n"
    )
    assert transaction.text.endswith(
        "\nadd element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.1 : 10.1.1.5 . 8080 }\n"
    )


def calls_of(made: Pipeline, events: Sequence[Event]) -> tuple[int, Transaction]:
    """How many functions are called, built-in ones included, from events to their transaction; and this."""
    calls = Counter[str]()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    transaction = made.apply(events)
    sys.setprofile(None)
    return calls["call"] + calls["c_call"], transaction


def test_a_replaced_endpoint_takes_few_calls() -> None:
    """From the event to the transaction, Python makes a bounded number of calls for a change of one endpoint of ten."""
    pods = [f"10.1.{number}.4@n" for number in range(10)]
    made = pipeline(service(), slice_of(endpoints=pods))
    for newcomer in ("10.1.3.5@n", "10.1.3.6@n"):
        made.apply([Put(slice_of(endpoints=[newcomer, *pods[1:]]))])
    change = [Put(slice_of(endpoints=pods))]
    calls, transaction = calls_of(made, change)
    assert "10.1.0.4" in transaction.text
    assert calls < MOST_CALLS


def test_one_endpoint_of_a_thousand_takes_few_calls() -> None:
    """Where one of ten full EndpointSlices changes, the endpoints that haven't changed take no calls."""
    crowd = Crowd(1_000, per_slice=100)
    made = pipeline(service(), *crowd.slices)
    for step in (("gone", 0, 0), ("come", 0, 0)):
        made.apply(crowd.change(step))
    found = [calls_of(made, crowd.change((name, at, 5 * at)))[0] for at in range(20) for name in ("gone", "come")]
    assert sum(found) / len(found) < MOST_CALLS_OF_A_THOUSAND


def test_what_is_kept_of_a_service_goes_with_it() -> None:
    """When a Service with many endpoints goes, or changes, nothing is left of what was decided about it before."""
    crowd = Crowd(200)
    made = pipeline(service(), *crowd.slices)
    made.apply(crowd.change(("gone", 0, 0)))
    assert len(made.kept) == 1
    made.apply([Put(service(ports=["other:80"]))])
    assert len(made.kept) == 0
    made.apply([Put(service())])
    made.apply(crowd.change(("gone", 0, 0)))
    assert len(made.kept) == 1
    made.apply([Removed(Service, key("shop/web"))])
    assert len(made.kept) == 0


def test_nothing_is_kept_of_a_first_load() -> None:
    """What comes at once with many others is not kept: at the start that would be of most of them for nothing."""
    names = [f"shop/s{number}" for number in range(MOST_AT_ONCE + 1)]
    few: list[Given] = [service(name, cluster_ips=[f"10.96.1.{at}"]) for at, name in enumerate(names)]
    crowd: list[Given] = [*slices_of(100, 100, names[0])]
    made = pipeline(*few, *crowd)
    for each in (made, pieces_of(Settings(), few[:1] + crowd)[0]):
        assert len(each.kept) == 0
    made.apply([Put(slice_of(names[0], suffix="more"))])
    assert len(made.kept) == 1


def test_losses_are_told_once() -> None:
    """A loss is reported when it happens, and then no more until the Service has had it again."""
    losers = [service(f"shop/z{i}", cluster_ips=[f"10.96.0.{20 + i}"], ports=["http:80:30080"]) for i in range(2)]
    made = pipeline(service(ports=["http:80:30080"]), *losers)
    assert {lost.service for lost in made.take_losses()} == {each.key for each in losers}
    assert made.take_losses() == []
    made.apply([Put(slice_of("shop/z1"))])
    assert made.take_losses() == []
    made.apply([Removed(Service, key("shop/web"))])
    made.apply([Put(service(ports=["http:80:30080"]))])
    assert [lost.service for lost in made.take_losses()] == [key("shop/z0")]


def test_much_work_is_done_in_steps() -> None:
    """Others get their turns after each step; nothing is to be seen before the end, which is as without steps."""
    many = [
        service(f"shop/s{number}", cluster_ips=[f"10.96.{number >> 8}.{number & 255}"]) for number in range(2 * STEP)
    ]
    made, counting = pipeline(), Counting()
    stepping = pipeline(renderer=counting)
    steps = stepping.applying([Listed(Service, tuple(many))])
    compiled = []
    for _ in range(5):
        next(steps)
        compiled.append(counting.ports)
        assert not elements(stepping, IPV4, "cluster-ips")
    assert compiled == [0, 0, 0, 0, STEP]  # two steps to take them in, two to see what each would cost
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert join(end.value.value.values()) == made.apply([Listed(Service, tuple(many))])


def test_the_first_services_for_no_kernel_come_piece_by_piece() -> None:
    """Where no family needs a text that follows the change, it is never made as a whole, with the same outcome."""
    many = [
        service(f"shop/s{number}", cluster_ips=[f"10.96.{number >> 8}.{number & 255}"]) for number in range(2 * STEP)
    ]
    made, growing = pipeline(), pipeline()
    steps = Steps(growing.applying([Listed(Service, tuple(many))], ()))
    seen = [len(elements(growing, IPV4, "cluster-ips")) for _ in steps]
    assert steps.result == {}
    assert {0, STEP, 2 * STEP} <= set(seen)
    made.apply([Listed(Service, tuple(many))])
    assert growing.full_transaction({}) == made.full_transaction({})
    assert growing.contributors(IPV4) == made.contributors(IPV4)
    more: list[Event] = [Put(service("shop/s1", cluster_ips=["10.96.9.9"])), Removed(Service, key("shop/s2"))]
    counting = Steps(growing.applying(more, ()))
    for _ in counting:
        assert len(elements(growing, IPV4, "cluster-ips")) == 2 * STEP, "what goes and comes later does so at once"
    made.apply(more)
    assert growing.full_transaction({}) == made.full_transaction({})


def test_both_families_change_in_one_transaction() -> None:
    """What a dual-stack Service changes in both tables happens at once."""
    made = pipeline()
    made.apply([Put(service("shop/cart", cluster_ips=["10.96.0.11", "fd00:96::11"]))])
    text = made.apply([Put(service(cluster_ips=["10.96.0.10", "fd00:96::10"]))]).text
    assert text == (
        "add element ip nftproxy cluster-ips { 10.96.0.10 }\n"
        "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.0 }\n"
        "add element ip nftproxy fronts { 10.96.0.10 . tcp . 80 }\n"
        "add element ip nftproxy no-endpoints { 10.96.0.10 . tcp . 80 }\n"
        "add element ip6 nftproxy cluster-ips { fd00:96::10 }\n"
        "add element ip6 nftproxy services { fd00:96::10 . tcp . 80 : :: }\n"
        "add element ip6 nftproxy fronts { fd00:96::10 . tcp . 80 }\n"
        "add element ip6 nftproxy no-endpoints { fd00:96::10 . tcp . 80 }\n"
    )


def test_only_the_families_asked_for_are_made() -> None:
    """A pipeline for one family has nothing of the other."""
    made = pipeline(service(cluster_ips=["10.96.0.10", "fd00:96::10"]), families=[IPV6])
    assert list(made.generations) == [IPV6]
    assert "table ip nftproxy" not in made.full_transaction({}).text


@pytest.mark.parametrize(
    "events",
    [
        [],
        [Put(service())],
        [Put(slice_of("shop/other"))],
        [Put(service(ports=["81"])), Put(service())],
        [Removed(Service, key("shop/web")), Put(service())],
        [Listed(Service, ()), Listed(Service, (service(),))],
        [Put(slice_of(endpoints=[*TWO.endpoints, *TWO.endpoints]))],
        [Put(node("node-b"))],
        [Put(slice_of(endpoints=["10.1.1.5", "10.1.1.4 zone=a"]))],
    ],
)
def test_what_changes_no_rule_is_no_transaction(events: list[Event]) -> None:
    """Events that leave the rules as they are, in the end, make an empty transaction."""
    assert pipeline(service(), TWO).apply(events) == Transaction()


def test_a_change_of_the_node_redoes_its_chains() -> None:
    """Pod CIDRs that come late change the chains that tell local sources, flushed and refilled in one transaction."""
    made = pipeline(detect_local_mode="NodeCIDR", families=[IPV4])
    text = made.apply([Put(node(pod_cidrs=["10.1.7.0/24"]))]).text
    redone = ["services", "local-policy", "nodeport-local-policy"]
    head = "".join(f"add chain ip nftproxy {name}\nflush chain ip nftproxy {name}\n" for name in redone)
    assert text.startswith(f"{head}table ip nftproxy {{\n  chain services {{\n")
    assert (
        "    ip saddr 10.1.7.0/24 ip daddr set ip daddr . meta l4proto . th dport map @short-circuit goto draw\n"
        in text
    )


def test_service_cidrs_are_followed() -> None:
    """A second range is merged with the first: what was one element becomes another."""
    made = pipeline(service_cidr("10.96.0.0/16"))
    assert made.apply([Put(service_cidr("10.97.0.0/16", name="more"))]).text == (
        "delete element ip nftproxy service-cidrs { 10.96.0.0/16 }\n"
        "add element ip nftproxy service-cidrs { 10.96.0.0/15 }\n"
    )


def test_a_full_transaction_leaves_out_what_is_no_longer_used() -> None:
    """Chains of a past number of endpoints are deleted with the next full transaction, and made again when needed."""
    made = pipeline(service(), THREE)
    ledger = ledger_of(made)
    ledger.apply(made.apply([Put(TWO)]))
    assert (Kind.CHAIN, "tcp-endpoints-of-3") in chains(ledger)
    ledger.apply(made.full_transaction({family: ledger.installed(family) for family in Family}))
    assert (Kind.CHAIN, "tcp-endpoints-of-3") not in chains(ledger)
    ledger.apply(made.apply([Put(THREE)]))
    assert (Kind.CHAIN, "tcp-endpoints-of-3") in chains(ledger)


def test_a_full_transaction_is_of_both_families() -> None:
    """Both tables are loaded, and what is no longer used is left out of both."""
    made = pipeline(service(cluster_ips=["fd00:96::10"]), slice_of(endpoints=["fd00:1::4", "fd00:1::5"]))
    made.apply([Put(slice_of(endpoints=["fd00:1::4"]))])
    ledger = ledger_of(made)
    for family in Family:
        assert ledger.held(family) == set(made.generations[family].elements())
        assert made.generations[family].declarations == made.generations[family].used_declarations()
    assert (Kind.CHAIN, "tcp-endpoints-of-2") not in made.generations[IPV6].declarations


def chains(ledger: Ledger) -> set[tuple[Kind, str]]:
    """What is declared in the IPv4 table, by name."""
    return {(kind, name) for kind, name, _ in ledger.declared(IPV4)}


def test_session_affinity_survives_a_full_transaction() -> None:
    """A reload neither flushes nor declares anew what packets have written."""
    made = pipeline(service(affinity_timeout=60), TWO)
    ledger = ledger_of(made)
    ledger.elements["ip nftproxy"]["tcp-affinity-60"] = {"198.51.100.7 . 10.96.0.10 . 80": "10.1.1.4"}
    ledger.apply(made.full_transaction({family: ledger.installed(family) for family in Family}))
    assert ledger.elements["ip nftproxy"]["tcp-affinity-60"] == {"198.51.100.7 . 10.96.0.10 . 80": "10.1.1.4"}


def test_another_versions_table_is_replaced() -> None:
    """Rules of other templates go as a whole, whatever they were."""
    old = templates()[TABLE_TEMPLATE].replace("refuse", "reset")
    text = old.replace("cluster-ips", "virtual-ips")
    text = text.replace("{{ endings.no_endpoint }}", "goto reset").replace("{{ endings.nodeport_no_endpoint }}", "drop")
    service_text = templates()["service.nft.j2"].replace("cluster-ips", "virtual-ips")
    other = Renderer({**templates(), TABLE_TEMPLATE: text, "service.nft.j2": service_text})
    made = pipeline(service())
    ledger = ledger_of(pipeline(service("shop/cart"), renderer=other), made)
    assert ledger.held(IPV4) == set(made.generations[IPV4].elements())
    assert (Kind.SET, "virtual-ips") not in chains(ledger)


def test_a_canarys_table_says_that_another_proxy_is_there() -> None:
    """The table's comment tells who serves only some Services, in both families, loads and trials alike."""
    for name, is_canary in (("", False), ("canary", True)):
        made = pipeline(service(), service_proxy_name=name)
        for text in (made.load(IPV4, None).text, made.load(IPV6, None).text, made.trial(IPV4, []).text):
            assert ('-canary"' in text) is is_canary


def test_a_bad_template_is_told_at_once() -> None:
    """A table template that can't be rendered fails the pipeline when it is made."""
    with pytest.raises(
        TemplateError, match=r"^NFT108: table\.nft\.j2: line 1: UndefinedError: 'nothing' is undefined$"
    ):
        pipeline(renderer=Renderer({**templates(), TABLE_TEMPLATE: "{{ nothing }}\n"}))


def test_what_a_template_failed_for_is_made_up_for() -> None:
    """A Service that a template fails for holds up others, but no event is lost: when it has gone, all is well."""
    failing = templates()["service.nft.j2"] + "{% if '10.96.0.66' in cluster_ips %}\n{{ nothing }}\n{% endif %}\n"
    made = pipeline(renderer=Renderer({**templates(), "service.nft.j2": failing}))
    with pytest.raises(
        TemplateError, match=r"^NFT108: service\.nft\.j2: line \d+: UndefinedError: 'nothing' is undefined$"
    ):
        made.apply([Put(service("blog/bad", cluster_ips=["10.96.0.66"])), Put(service())])
    made.apply([Removed(Service, key("blog/bad"))])
    assert elements(made, IPV4, "cluster-ips") == {"10.96.0.10": ""}


# Cost


@pytest.mark.parametrize(
    ("event", "renders"),
    [
        (Put(slice_of("shop/s3", ["10.1.9.9"])), 2),
        (Put(service("shop/s3", cluster_ips=["10.96.0.103", "fd00:96::103"], ports=["a:80", "b:81"])), 4),
        (Put(service("shop/new", cluster_ips=["10.96.0.200"], ports=["a:80", "b:81"])), 2),
        (Removed(Service, key("shop/s3")), 0),
        (Put(service_cidr()), 0),
        (Put(service("shop/new", cluster_ips=["10.96.0.104"])), 3),
    ],
    ids=["a slice", "two ports more", "a new Service", "a Service less", "a ServiceCIDR", "a contested address"],
)
def test_a_change_costs_what_it_touches(event: Event, renders: int) -> None:
    """Only the ports of what is touched are rendered, once a family, and all other blocks are the very same objects."""
    counting = Counting()
    many = [
        service(f"shop/s{number}", cluster_ips=[f"10.96.0.{100 + number}", f"fd00:96::{100 + number}"])
        for number in range(20)
    ]
    made = pipeline(*many, *(slice_of(str(each.key)) for each in many), renderer=counting)
    before = {family: dict(generation.blocks) for family, generation in made.generations.items()}
    counting.ports = counting.tables = 0
    made.apply([event])
    assert counting.ports == renders
    assert counting.tables == (2 if event == Put(service_cidr()) else 0)
    touched = {"shop/s3", "shop/new", "shop/s4"}
    for family, generation in made.generations.items():
        for owner, block in before[family].items():
            if isinstance(owner, PortKey) and str(owner.service) not in touched:
                assert generation.blocks[owner] is block


@quick()
@given(clusters, st.sampled_from(["blog/api", "shop/cart", "shop/web"]))
def test_a_slice_changes_only_its_services_blocks(cluster: list[Given], name: str) -> None:
    """Whatever the cluster, a slice more leaves the blocks of all other Services the very same objects."""
    made = pipeline(*cluster, node=None)
    before = {family: dict(generation.blocks) for family, generation in made.generations.items()}
    made.apply([Put(slice_of(name, ["10.1.0.9@node-a"], ports=["80", "web:80", "dns:53/udp"], suffix="more"))])
    for family, generation in made.generations.items():
        others = {o: b for o, b in before[family].items() if not (isinstance(o, PortKey) and o.service == key(name))}
        assert all(generation.blocks[owner] is block for owner, block in others.items())


def test_only_the_families_asked_for_get_a_transaction() -> None:
    """A family that isn't asked for follows in its generation all the same, and gets no text."""
    made = pipeline(service(cluster_ips=["10.96.0.10", "fd00::10"]))
    steps = Steps(made.applying([Put(slice_of()), Put(slice_of(endpoints=["fd00::4"], suffix="6"))], [IPV6]))
    list(steps)
    assert steps.result.keys() == {IPV6}
    assert elements(made, IPV4, "tcp-endpoints")


# The first load, piece by piece


def pieces_of(settings: Settings, cluster: Iterable[Given]) -> tuple[Pipeline, list[Transaction]]:
    """A pipeline that got all of these at once, and the transactions that fill tables with it."""
    made = Pipeline("node-a", settings, renderer())
    return made, [each for each in made.filling([Put(each) for each in cluster], {}) if each]


@quick()
@given(all_settings, clusters)
def test_what_is_loaded_in_pieces_is_what_is_loaded_at_once(settings: Settings, cluster: list[Given]) -> None:
    """Whatever the cluster, the pieces make the same tables, and the pipeline goes on from there as any other."""
    made, pieces = pieces_of(settings, cluster)
    whole = fresh(settings, cluster)
    ledger, at_once = Ledger(), ledger_of(whole)
    for each in pieces:
        ledger.apply(each)
    assert ledger.comments == at_once.comments
    for family in Family:
        assert ledger.held(family) == at_once.held(family)
        assert ledger.declared(family) == at_once.declared(family)
        assert made.generations[family].blocks == whole.generations[family].blocks
    assert list(made.all_losses()) == list(whole.all_losses())
    assert made.health_checks.by_port == whole.health_checks.by_port
    assert made.flows.take() == whole.flows.take()
    for event in (Put(service("shop/new", cluster_ips=["10.96.7.7"])), Put(slice_of("shop/new", ["10.1.0.9"]))):
        assert made.apply([event]) == whole.apply([event])


def test_hooks_come_last() -> None:
    """However many pieces there are, each has so many Services at the most, and only the last has base chains.

    So it is with those that come with a Service, too.
    """
    limits = {STEP: {"client-connections": "5"}}
    many = [
        service(f"shop/s{i}", cluster_ips=[f"10.97.{i >> 8}.{i & 255}"], annotations=limits.get(i, {}))
        for i in range(3 * STEP)
    ]
    _, pieces = pieces_of(Settings(), [*many, slice_of(f"shop/s{STEP}")])
    assert len(pieces) == 5
    assert ["hook" in each.text for each in pieces] == [False] * 4 + [True]
    assert pieces[-1].text.count("jump screen\n") == 2
    assert [each.text.count(" . tcp . 80 : ") for each in pieces] == [0, STEP + 1, STEP, STEP, 0]


def test_a_large_service_is_a_piece_by_itself() -> None:
    """A piece ends after some thousands of elements, however few Services these are."""
    hosts = [f"10.{number >> 8}.{number & 255}.4" for number in range(256, 256 + STEP_ELEMENTS)]
    crowd = [service(f"shop/s{i}", cluster_ips=[f"10.97.0.{i}"]) for i in (1, 2)]
    _, pieces = pieces_of(Settings(), [*crowd, *(slice_of(str(each.key), hosts) for each in crowd)])
    assert sum(each.size().elements >= STEP_ELEMENTS for each in pieces) == 2


# Properties


CROWDED = (
    service(),
    service(affinity_timeout=60, cluster_ips=["10.96.0.10", "fd00:96::10"]),
    service(
        type="LoadBalancer",
        ports=["http:80:30080"],
        load_balancer_ips=["203.0.113.7"],
        external_policy="Local",
        health_check_node_port=32000,
    ),
    service(annotations={"weights": "zone:a=2,zone:b=1"}),
    service(annotations={"algorithm": "round-robin"}),
    service(annotations={"silent-endpoints": "leave-out"}),
)


class KeepsNothing(Kept):
    """Decides about every port from nothing."""

    def port(self, *_: object) -> None:
        """Nothing, whatever the port."""


@quick(25)
@given(st.sampled_from(CROWDED), st.sampled_from([90, 120, 210]), steps)
def test_many_endpoints_give_the_rules_of_who_never_knew_others(
    web: Service, count: int, history: list[tuple[str, int, int]]
) -> None:
    """Whatever happens to a Service with many endpoints in several slices, its rules are those from nothing.

    The kernel, which got only the changes, holds them.
    """
    crowd = Crowd(count)
    made = pipeline(web, *crowd.slices)
    ledger = ledger_of(made)
    for step in history:
        ledger.apply(made.apply(crowd.change(step)))
        anew = pipeline(web, node=crowd.node)
        anew.kept = KeepsNothing()
        anew.apply(list(map(Put, crowd.slices)))
        for family in Family:
            assert made.generations[family].blocks == anew.generations[family].blocks
    for family in Family:
        assert ledger.held(family) >= set(made.generations[family].used_elements())
        assert set(made.generations[family].used_elements()) == set(anew.generations[family].elements())


@quick()
@given(all_settings, clusters)
def test_every_number_finds_its_endpoints(settings: Settings, cluster: list[Given]) -> None:
    """A number leads to a chain that draws so many of a list, and of that front this has just the slots 0 to N-1."""
    made = fresh(settings, cluster)
    for family, generation in made.generations.items():
        values = {(each.container, each.key): each.value for each in generation.elements()}
        slots = set()
        for prefix, name in itertools.product(("", "nodeport-"), ("services", "short-circuit")):
            for front, number in elements(made, family, f"{prefix}{name}").items():
                chain = values[f"{prefix}draws", number].removeprefix("goto ")
                assert (Kind.CHAIN, chain) in generation.declarations
                if chain == "undrawn":
                    continue
                match = _DRAWS.fullmatch(chain)
                assert match, chain
                assert (Kind.CHAIN, f"translate-{match['list']}") in generation.declarations
                *address, protocol, port = front.split(" . ")
                assert match["list"].startswith(f"{prefix}{protocol}-")
                where = " . ".join([*address, port])
                slots |= {
                    (match["list"], f"{where} . {as_address(slot, family)}") for slot in range(int(match["count"]))
                }
        lists = re.compile(r"(nodeport-)?(tcp|udp|sctp)-(local-)?endpoints")
        assert {
            (each.container, each.key) for each in generation.elements() if lists.fullmatch(each.container)
        } == slots


_DRAWS = re.compile(r"(?P<list>.*endpoints)-of-(?P<count>\d+)(?:-by-client(?:-and-port)?|-in-turn-[0-7])?(?:-sticky)?")


@quick()
@given(all_settings, clusters)
def test_memberships_agree_with_each_other(settings: Settings, cluster: list[Given]) -> None:
    """What is served is known, a front has one external policy, and only what is guarded has allowed sources."""
    made = fresh(settings, cluster)
    for family in Family:
        for prefix in ("", "nodeport-"):
            fronts = {
                name: elements(made, family, f"{prefix}{name}").keys()
                for name in (
                    "services",
                    "masqueraded",
                    "local-policy",
                    "short-circuit",
                    "fronts",
                    "no-endpoints",
                    "affinity",
                )
            }
            assert all(each <= fronts["fronts"] for each in fronts.values())
            assert fronts["short-circuit"] <= fronts["local-policy"]
            assert not fronts["local-policy"] & fronts["masqueraded"]
            assert fronts["affinity"] <= fronts["services"] | fronts["short-circuit"]
        guarded, at_nodes = elements(made, family, "guarded"), elements(made, family, "nodeport-guarded")
        lists = {allowed.partition(" . ")[0] for allowed in elements(made, family, "allowed")}
        assert lists == {*guarded.values(), *at_nodes.values()} - {"0.0.0.0", "::"}
        assert guarded.keys() <= elements(made, family, "fronts").keys()
        assert at_nodes.keys() <= elements(made, family, "nodeport-fronts").keys()


def test_skeleton_blocks_are_the_nodes() -> None:
    """Each generation has one block of the node's own beside those of Service ports."""
    made = pipeline(service(), slice_of())
    for generation in made.generations.values():
        assert [owner for owner in generation.blocks if not isinstance(owner, PortKey)] == [SKELETON]
        assert generation.blocks[SKELETON].declarations


def test_the_skeleton_is_there_before_any_event() -> None:
    """A pipeline that has got nothing has the rules of a node without Services, whose templates are known to work."""
    made = Pipeline("node-a", Settings(), renderer())
    assert all(generation.blocks[SKELETON].declarations for generation in made.generations.values())
    assert made.apply([]) == Transaction()


def test_ports_that_go_take_their_blocks_along() -> None:
    """A Service that loses a port, or all, leaves no block of it behind."""
    made = pipeline(service(ports=["a:80", "b:81"]))
    made.apply([Put(service(ports=["b:81"]))])
    assert owners(made) == ["shop/web:b"]
    made.apply([Put(service(ports=[]))])
    assert owners(made) == ["shop/web"]
    made.apply([Put(service(cluster_ips=["fd00:96::10"]))])
    assert owners(made) == []
    assert list(made.generations[IPV4].elements()) == list(made.generations[IPV4].blocks[SKELETON].elements)


def test_nothing_is_kept_of_what_has_gone() -> None:
    """A Service that goes takes all its ports along, and what was noted of them."""
    made = pipeline(service("shop/older"), service(created=1, ports=["a:80", "b:81", "c:82"]))
    made.apply([Removed(Service, key("shop/older")), Removed(Service, key("shop/web"))])
    assert owners(made) == []
    assert (made.losses, made._owned) == ({}, {})


def test_losses_are_told_while_they_last() -> None:
    """What a Service doesn't get is known for each family, a node port once, until the winner lets go."""
    both = ["10.96.0.10", "fd00:96::10"]
    older = service("shop/older", cluster_ips=both, ports=["80:30080"])
    made = pipeline(older, service(cluster_ips=both, created=1, ports=["80:30080"]))
    (losses,) = made.losses.values()
    assert [each.what for each in losses] == ["10.96.0.10 . tcp . 80", "tcp . 30080", "fd00:96::10 . tcp . 80"]
    made.apply([Put(service("shop/older", cluster_ips=["10.96.0.20"]))])
    assert made.losses == {}


def test_services_of_one_batch_are_written_in_the_order_of_their_names() -> None:
    """The transaction is the same in every process, whatever order a set has there."""
    numbers = [f"{number:02}" for number in range(40)]
    batch = [Put(service(f"shop/s{number}", cluster_ips=[f"10.96.1.{int(number)}"])) for number in reversed(numbers)]
    made = pipeline()
    made.apply(batch)
    assert list(elements(made, IPV4, "cluster-ips")) == [f"10.96.1.{int(number)}" for number in numbers]


def test_a_node_that_changes_together_with_a_service_changes_all_services() -> None:
    """Every Service follows the node's zone, although another event of the batch touches less."""
    made = pipeline(service(), slice_of(endpoints=["10.1.1.4 zone=a", "10.1.1.5 zone=b"]), node=node(zone="a"))
    made.apply([Put(node(zone="b")), Put(service("shop/cart", cluster_ips=["10.96.0.20"]))])
    assert elements(made, IPV4, "tcp-endpoints") == {"10.96.0.10 . 80 . 0.0.0.0": "10.1.1.5 . 8080"}


def owners(made: Pipeline) -> list[str]:
    """The Service ports that have a block in the IPv4 table."""
    return [str(owner) for owner in made.generations[IPV4].blocks if isinstance(owner, PortKey)]


def test_a_kind_that_is_listed_anew_is_replaced() -> None:
    """A list of EndpointSlices takes away the endpoints of those it lacks."""
    made = pipeline(service(), TWO)
    made.apply([Listed(EndpointSlice, ())])
    assert elements(made, IPV4, "tcp-endpoints") == {}


# ---- Services in quarantine ----------------------------------------------------------------------------------------

WEB, CART = service("shop/web"), service("shop/cart", cluster_ips=["10.96.0.20", "fd00:96::20"], ports=["a:80", "b:81"])
WEB_PODS, CART_PODS = (
    slice_of(endpoints=["10.1.0.4"]),
    slice_of("shop/cart", [f"10.1.0.{n}" for n in range(5, 12)], ports=["a:80"]),
)
CART_KEY = key("shop/cart")


def held(made: Pipeline) -> dict[Family, tuple[frozenset[Element], frozenset[str]]]:
    """What its generations have: elements, and the names of what is declared."""
    return {
        family: (frozenset(each.elements()), frozenset(name for _, name in each.declarations))
        for family, each in made.generations.items()
    }


def withhold(made: Pipeline, *services: ObjectKey) -> None:
    """Let Services contribute to neither family, and the kernel know nothing of them."""
    for family in Family:
        made.withhold(family, services)
    made.full_transaction({})


def test_who_is_withheld_contributes_nothing() -> None:
    """The rules are those of all others, however the Service changes; once it is admitted, those of everyone."""
    made = pipeline(WEB, WEB_PODS, CART, CART_PODS)
    withhold(made, CART_KEY)
    assert held(made) == held(pipeline(WEB, WEB_PODS))
    assert not made.apply([Put(slice_of("shop/cart", ["10.1.0.9"], ports=["a:80"]))])
    made.apply([Put(CART_PODS)])
    assert made.withheld == {family: {CART_KEY: ""} for family in Family}
    assert "10.96.0.20" in made.admit(IPV4, CART_KEY).text
    made.admit(IPV6, CART_KEY)
    assert held(made) == held(pipeline(WEB, WEB_PODS, CART, CART_PODS))
    assert made.withheld == {family: {} for family in Family}


@pytest.mark.parametrize(("family", "other"), [(IPV4, IPV6), (IPV6, IPV4)])
def test_a_family_is_withheld_by_itself(family: Family, other: Family) -> None:
    """What a Service contributes to the other family stays."""
    both = service("shop/both", cluster_ips=["10.96.0.30", "fd00:96::30"])
    made = pipeline(WEB, WEB_PODS, both)
    made.withhold(family, [both.key])
    made.full_transaction({})
    assert held(made)[family] == held(pipeline(WEB, WEB_PODS))[family]
    assert held(made)[other] == held(pipeline(WEB, WEB_PODS, both))[other]
    assert made.contributors(family) == [WEB.key]
    assert made.contributors(other) == [both.key, WEB.key]


def test_who_is_taken_back_leaves_nothing_behind() -> None:
    """What the kernel has refused isn't taken to be there: chains that only this Service needs."""
    made = pipeline(WEB, WEB_PODS, CART, CART_PODS)
    withhold(made, CART_KEY)
    before = held(made)
    made.take_updated()
    made.admit(IPV4, CART_KEY)
    made.take_back(IPV4, CART_KEY, "still no")
    assert held(made) == before
    assert made.take_updated() == set()
    assert made.withheld == {IPV4: {CART_KEY: "still no"}, IPV6: {CART_KEY: ""}}
    assert "chain tcp-endpoints-of-7 {" in made.admit(IPV4, CART_KEY).text


def test_a_trial_is_a_load_without_some_services() -> None:
    """It makes a table anew, with what all others contribute, and changes nothing of what is said to be there."""
    made = pipeline(WEB, WEB_PODS, CART, CART_PODS)
    before = held(made)
    for there in (Transaction(), made.full_transaction({})):
        for family, (wanted, names) in held(pipeline(WEB, WEB_PODS)).items():
            nothing, ledger = Ledger(), Ledger()
            nothing.apply(there)
            nothing.apply(made.trial(family, [CART_KEY, key("shop/web")]))
            assert not any(each.container == "cluster-ips" for each in nothing.held(family))
            ledger.apply(there)
            ledger.apply(made.trial(family, [CART_KEY]))
            assert ledger.held(family) == wanted
            assert {name for _, name, _ in ledger.declared(family)} == names
    assert held(made) == before


def test_updates_are_reported_once() -> None:
    """Services that changed, came or went since the last time, and those that were withheld; no others."""
    made = pipeline(WEB, CART)
    assert made.take_updated() == {WEB.key, CART_KEY}
    assert made.take_updated() == set()
    made.apply([Put(CART_PODS)])
    assert made.take_updated() == {CART_KEY}
    made.apply([Removed(Service, WEB.key)])
    made.withhold(IPV4, [CART_KEY])
    assert made.take_updated() == {WEB.key, CART_KEY}


def test_who_goes_is_no_longer_withheld() -> None:
    """And if it comes again it is like any other."""
    made = pipeline(WEB, CART)
    withhold(made, CART_KEY)
    made.apply([Removed(Service, CART_KEY)])
    assert made.withheld == {family: {} for family in Family}
    made.apply([Put(CART)])
    assert held(made) == held(pipeline(WEB, CART))
