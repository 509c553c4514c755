"""The pipeline as a whole: the same objects give the same rules, and a change costs only the parts that it touches."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies import quick
from nftproxy_conformance.strategies.histories import clusters
from nftproxy_conformance.strategies.objects import Given, all_settings

from nftproxy.installed import INSTALLED, OPTIONS
from nftproxy.kernel.in_two import in_two
from nftproxy.model.addresses import Family
from nftproxy.model.errors import TemplateError
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.mapping import one_by_one
from nftproxy.model.objects import EndpointSlice, ObjectKey, Service, ServicePort
from nftproxy.model.stages import Stage
from nftproxy.model.steps import Steps
from nftproxy.pipeline import MOST_CACHED, SKELETON, STEP, STEP_ELEMENTS, Pipeline
from nftproxy.policy.choosing.choice import ChoiceCache
from nftproxy.policy.choosing.verdicts import Choice, ServiceEndpoints, choose
from nftproxy.policy.compile import PortKey
from nftproxy.policy.extension import Settings
from nftproxy.policy.facts import PortFacts, TableFacts
from nftproxy.policy.numbers import as_address
from nftproxy.rules.renderer import TABLE_TEMPLATE, Renderer
from nftproxy.rules.ruleset import Block, Element, NftKind
from nftproxy.rules.transaction import Transaction, join
from tests.support.crowds import Crowd, slices_of, steps
from tests.support.factories import (
    IPV4,
    IPV6,
    Ledger,
    elements,
    key,
    networks,
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

MOST_CALLS = 680
"""Most function calls, built-in functions included, for a change of one endpoint of ten.  Python 3.11 takes 677, and
later versions take fewer.  The number doesn't depend on the machine."""

MOST_CALLS_OF_A_THOUSAND = 8_000
"""The same for one endpoint of 1,000 in ten EndpointSlices.  The mean of 40 changes is 7,020, of which 4,000 give all
endpoints their slots.  It was 19,000 before choices were cached."""


class Counting(Renderer):
    """A renderer that counts the blocks that it renders."""

    def __init__(self) -> None:
        super().__init__(templates())
        self.ports = self.tables = 0

    def table(self, facts: TableFacts) -> Block:
        """Count a rendered table."""
        self.tables += 1
        return super().table(facts)

    def port(self, facts: PortFacts, table: str) -> Block:
        """Count a rendered port."""
        self.ports += 1
        return super().port(facts, table)


def fresh(settings: Settings, objects: Iterable[Given]) -> Pipeline:
    """A new pipeline that got all of these events at once."""
    made = Pipeline("node-a", settings, renderer())
    made.ingest([Put(each) for each in objects])
    return made


def ledger_of(*pipelines: Pipeline) -> Ledger:
    """The ledger of a kernel after each of these pipelines has loaded everything, in this order."""
    ledger = Ledger()
    for made in pipelines:
        ledger.apply(made.full_transaction({family: ledger.installed(family) for family in Family}))
    return ledger


# Transactions


def test_adding_an_endpoint_is_two_elements() -> None:
    """If the chain for the new number exists, adding an endpoint takes its element and a changed verdict."""
    made = pipeline(service(), THREE)
    made.ingest([Put(TWO)])
    assert made.ingest([Put(THREE)]).text == (
        "delete element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.2 }\n"
        "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.3 }\n"
        "add element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.2 : 10.1.1.6 . 8080 }\n"
    )


def test_an_endpoint_of_a_thousand_that_goes_is_few_elements() -> None:
    """Most remaining endpoints keep their slots, and the rules equal those of a node that never had the endpoint."""
    pods = [f"10.{number % 7}.{number >> 8}.{number & 255}" for number in range(256, 1_256)]
    made = pipeline(service(), slice_of(endpoints=pods))
    found = []
    for gone in range(0, 1_000, 50):
        size = made.ingest([Put(slice_of(endpoints=pods[:gone] + pods[gone + 1 :]))]).size()
        found.append(size.elements)
        made.ingest([Put(slice_of(endpoints=pods))])
    assert sum(found) / len(found) < 150
    without = slice_of(endpoints=pods[1:])
    made.ingest([Put(without)])
    there = {(each.container, each.key): each.value for each in made.generations[IPV4].used_elements()}
    anew = pipeline(service(), without).generations[IPV4].used_elements()
    assert there == {(each.container, each.key): each.value for each in anew}


def test_each_stage_is_a_lap() -> None:
    """The timer gets each stage of a change as it ends, and compiling and rendering once for each port."""
    made = pipeline(service(), THREE)
    laps: list[Stage] = []
    made.lap = laps.append
    made.ingest([Put(TWO)])
    compiled = [Stage.COMPILE, Stage.RENDER]
    assert laps == [Stage.STATE, *compiled, Stage.DIFF, Stage.FOLLOW]
    laps.clear()
    made.ingest([Put(node(internal_ips=["192.0.2.77"]))])
    assert laps == [Stage.STATE, *compiled * 3, Stage.DIFF, Stage.FOLLOW]


def test_removing_an_endpoint_is_two_elements() -> None:
    """Removing an endpoint takes its element and a changed verdict, and slot 0 is removed last."""
    made = pipeline(service(), TWO)
    made.ingest([Put(ONE)])
    assert elements(made, IPV4, "tcp-endpoints") == {"10.96.0.10 . 80 . 0.0.0.0": "10.1.1.4 . 8080"}
    assert made.ingest([Put(slice_of(endpoints=[]))]).text == (
        "delete element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.1 }\n"
        "delete element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.0 : 10.1.1.4 . 8080 }\n"
        "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.0 }\n"
        "add element ip nftproxy no-endpoints { 10.96.0.10 . tcp . 80 }\n"
    )


def test_replacing_an_endpoint_is_one_element() -> None:
    """Replacing an endpoint changes no verdict, as the number of endpoints stays the same."""
    made = pipeline(service(), ONE)
    assert made.ingest([Put(slice_of(endpoints=["10.1.1.5"]))]).text == (
        "delete element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.0 : 10.1.1.4 . 8080 }\n"
        "add element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.0 : 10.1.1.5 . 8080 }\n"
    )


def test_a_new_number_of_endpoints_is_a_new_chain() -> None:
    """The first Service with a number of endpoints adds the chain for it, before the verdict that jumps there."""
    transaction = pipeline(service(), ONE).ingest([Put(TWO)])
    assert transaction.text.startswith(
        "add chain ip nftproxy tcp-endpoints-of-2\nflush chain ip nftproxy tcp-endpoints-of-2\ntable ip nftproxy {\n"
    )
    assert transaction.text.endswith(
        "\nadd element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.1 : 10.1.1.5 . 8080 }\n"
    )


def calls_of(made: Pipeline, events: Sequence[Event]) -> tuple[int, Transaction]:
    """The number of function calls, built-in functions included, from events to their transaction, and the latter."""
    calls = Counter[str]()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    transaction = made.ingest(events)
    sys.setprofile(None)
    return calls["call"] + calls["c_call"], transaction


def test_a_replaced_endpoint_takes_few_calls() -> None:
    """From event to transaction, Python makes a bounded number of calls if an endpoint of ten is replaced."""
    pods = [f"10.1.{number}.4@n" for number in range(10)]
    made = pipeline(service(), slice_of(endpoints=pods))
    for newcomer in ("10.1.3.5@n", "10.1.3.6@n"):
        made.ingest([Put(slice_of(endpoints=[newcomer, *pods[1:]]))])
    change = [Put(slice_of(endpoints=pods))]
    calls, transaction = calls_of(made, change)
    assert "10.1.0.4" in transaction.text
    assert calls < MOST_CALLS


def test_one_endpoint_of_a_thousand_takes_few_calls() -> None:
    """If one of ten full EndpointSlices changes, unchanged endpoints take no calls."""
    crowd = Crowd(1_000, per_slice=100)
    made = pipeline(service(), *crowd.slices)
    for step in (("gone", 0, 0), ("come", 0, 0)):
        made.ingest(crowd.change(step))
    found = [calls_of(made, crowd.change((name, at, 5 * at)))[0] for at in range(20) for name in ("gone", "come")]
    assert sum(found) / len(found) < MOST_CALLS_OF_A_THOUSAND


def test_cached_choices_go_with_their_service() -> None:
    """When a Service with many endpoints goes, or changes, its cached choices are evicted."""
    crowd = Crowd(200)
    made = pipeline(service(), *crowd.slices)
    made.ingest(crowd.change(("gone", 0, 0)))
    assert len(made.choices.entries) == 1
    made.ingest([Put(service(ports=["other:80"]))])
    assert len(made.choices.entries) == 0
    made.ingest([Put(service())])
    made.ingest(crowd.change(("gone", 0, 0)))
    assert len(made.choices.entries) == 1
    made.ingest([Removed(Service, key("shop/web"))])
    assert len(made.choices.entries) == 0


def test_known_fronts_follow_the_claims_of_other_services() -> None:
    """A Service whose endpoints have changed loses a front to an older Service, and gets it back when that goes."""
    web = service(created=9, external_ips=["203.0.113.25"])
    older = service("shop/old", created=1, cluster_ips=["10.96.0.11"], external_ips=["203.0.113.25"])
    made = pipeline(web, ONE)
    for events in ([Put(TWO)], [Put(older)], [Put(ONE)], [Removed(Service, older.key)], [Put(TWO)]):
        made.ingest(events)
        state = made.state
        anew = pipeline(*state.services.values(), *state.slices())
        assert made.generations[IPV4].blocks == anew.generations[IPV4].blocks


def test_known_fronts_are_bounded_in_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants that change all endpoints of Services with many fronts make the agent keep no more than a number."""
    monkeypatch.setattr("nftproxy.policy.compile.MOST_KNOWN", 10)
    sizes = [4, 4, 4, 12]
    names = [f"evil/s{number}" for number in range(len(sizes))]
    made = pipeline(
        *(
            service(name, cluster_ips=[f"10.97.0.{at + 1}"], ports=[f"p{port}:{port}" for port in range(1, size + 1)])
            for at, (name, size) in enumerate(zip(names, sizes, strict=True))
        )
    )
    known = made.known_fronts
    for name in (*names, *names):
        made.ingest([Put(slice_of(name, endpoints=["10.1.1.9"]))])
        made.ingest([Removed(EndpointSlice, key(f"{name}-1"))])
        assert known.count == sum(len(fronts) for each in known.of.values() for _, fronts in each) <= 10
    made.ingest([Put(slice_of(names[0])), *(Removed(Service, key(name)) for name in names)])
    assert (known.count, known.of) == (0, {})


def test_what_follows_endpoints_beside_rules_is_known_with_the_service() -> None:
    """A change of endpoints refreshes flows and health checks of the Services alone that have some."""
    udp = service("shop/dns", cluster_ips=["10.96.0.11"], ports=["dns:53/udp"])
    made = pipeline(service(), udp, ONE, slice_of("shop/dns", ports=["dns:5353/udp"]))
    made.flows.pop_due()
    refreshed = list[list[ObjectKey]]()
    made.flows.refresh = lambda _, services: refreshed.append(list(services))  # type: ignore[method-assign,assignment]
    for name in ("shop/web", "shop/dns"):
        made.ingest([Put(slice_of(name, endpoints=["10.1.1.9"]))])
    assert refreshed == [[udp.key]]


def test_a_first_load_is_not_cached() -> None:
    """Services that come together with many more are not cached, as most entries would be evicted at once."""
    names = [f"shop/s{number}" for number in range(MOST_CACHED + 1)]
    few: list[Given] = [service(name, cluster_ips=[f"10.96.1.{at}"]) for at, name in enumerate(names)]
    crowd: list[Given] = [*slices_of(100, 100, names[0])]
    made = pipeline(*few, *crowd)
    for each in (made, pieces_of(Settings(extensions=INSTALLED), few[:1] + crowd)[0]):
        assert len(each.choices.entries) == 0
    made.ingest([Put(slice_of(names[0], suffix="more"))])
    assert len(made.choices.entries) == 1


def test_much_work_is_done_in_steps() -> None:
    """Other tasks run after each step, no change shows before the end, and the result is the same as without steps."""
    many = [
        service(f"shop/s{number}", cluster_ips=[f"10.96.{number >> 8}.{number & 255}"]) for number in range(2 * STEP)
    ]
    made, counting = pipeline(), Counting()
    stepping = pipeline(renderer=counting)
    steps = stepping.ingest_in_steps([Listed(Service, tuple(many))])
    compiled = []
    for _ in range(9):
        assert next(steps) == {}
        compiled.append(counting.ports)
        assert not elements(stepping, IPV4, "cluster-ips")
    assert compiled[:6] == [0, 0, 0, 0, 0, 0]  # two steps to take them in, two to weigh them, two to enter them
    assert compiled[6:] == [STEP, STEP, 2 * STEP]  # a pause after PART elements, and one after STEP Services
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert join(end.value.value.values()) == made.ingest([Listed(Service, tuple(many))])


def test_the_first_services_for_no_kernel_come_piece_by_piece() -> None:
    """If no family needs an incremental transaction, Services are taken in piece by piece, with the same outcome."""
    many = [
        service(f"shop/s{number}", cluster_ips=[f"10.96.{number >> 8}.{number & 255}"]) for number in range(2 * STEP)
    ]
    made, growing = pipeline(), pipeline()
    steps = Steps(growing.ingest_in_steps([Listed(Service, tuple(many))], ()))
    seen = [len(elements(growing, IPV4, "cluster-ips")) for _ in steps]
    assert steps.result == {}
    assert {0, STEP, 2 * STEP} <= set(seen)
    made.ingest([Listed(Service, tuple(many))])
    assert growing.full_transaction({}) == made.full_transaction({})
    assert growing.contributors(IPV4) == made.contributors(IPV4)
    more: list[Event] = [Put(service("shop/s1", cluster_ips=["10.96.9.9"])), Removed(Service, key("shop/s2"))]
    counting = Steps(growing.ingest_in_steps(more, ()))
    for _ in counting:
        assert len(elements(growing, IPV4, "cluster-ips")) == 2 * STEP, "what goes and comes later does so at once"
    made.ingest(more)
    assert growing.full_transaction({}) == made.full_transaction({})


def test_both_families_change_in_one_transaction() -> None:
    """The changes of a dual-stack Service to both tables are in one transaction."""
    made = pipeline()
    made.ingest([Put(service("shop/cart", cluster_ips=["10.96.0.11", "fd00:96::11"]))])
    text = made.ingest([Put(service(cluster_ips=["10.96.0.10", "fd00:96::10"]))]).text
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
    """A pipeline for one family has no rules of the other family."""
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
    """Events that leave the rules unchanged in the end make an empty transaction."""
    assert pipeline(service(), TWO).ingest(events) == Transaction()


def test_a_change_of_the_node_redoes_its_chains() -> None:
    """Pod CIDRs that come late change the chains that tell local sources, flushed and refilled in one transaction."""
    made = pipeline(detect_local_mode="NodeCIDR", families=[IPV4])
    text = made.ingest([Put(node(pod_cidrs=["10.1.7.0/24"]))]).text
    redone = ["services", "local-policy", "nodeport-local-policy"]
    head = "".join(f"add chain ip nftproxy {name}\nflush chain ip nftproxy {name}\n" for name in redone)
    assert text.startswith(f"{head}table ip nftproxy {{\n  chain services {{\n")
    assert (
        "    ip saddr 10.1.7.0/24 ip daddr set ip daddr . meta l4proto . th dport map @short-circuit goto draw "
        'comment "local source: any endpoint may serve it, and its address is kept"\n'
    ) in text


def test_service_cidrs_are_followed() -> None:
    """A second range is merged with the first, so the element is replaced."""
    made = pipeline(service_cidr("10.96.0.0/16"))
    assert made.ingest([Put(service_cidr("10.97.0.0/16", name="more"))]).text == (
        "delete element ip nftproxy service-cidrs { 10.96.0.0/16 }\n"
        "add element ip nftproxy service-cidrs { 10.96.0.0/15 }\n"
    )


def test_a_full_transaction_leaves_out_what_is_no_longer_used() -> None:
    """A full transaction deletes chains of unused numbers of endpoints, which are added again when needed."""
    made = pipeline(service(), THREE)
    ledger = ledger_of(made)
    ledger.apply(made.ingest([Put(TWO)]))
    assert (NftKind.CHAIN, "tcp-endpoints-of-3") in chains(ledger)
    ledger.apply(made.full_transaction({family: ledger.installed(family) for family in Family}))
    assert (NftKind.CHAIN, "tcp-endpoints-of-3") not in chains(ledger)
    ledger.apply(made.ingest([Put(THREE)]))
    assert (NftKind.CHAIN, "tcp-endpoints-of-3") in chains(ledger)


def test_a_full_transaction_is_of_both_families() -> None:
    """A full transaction loads both tables, and leaves unused chains out of both."""
    made = pipeline(service(cluster_ips=["fd00:96::10"]), slice_of(endpoints=["fd00:1::4", "fd00:1::5"]))
    made.ingest([Put(slice_of(endpoints=["fd00:1::4"]))])
    ledger = ledger_of(made)
    for family in Family:
        assert ledger.held(family) == set(made.generations[family].elements())
        assert made.generations[family].declarations == made.generations[family].used_declarations()
    assert (NftKind.CHAIN, "tcp-endpoints-of-2") not in made.generations[IPV6].declarations


def chains(ledger: Ledger) -> set[tuple[NftKind, str]]:
    """The declarations of the IPv4 table, by name."""
    return {(kind, name) for kind, name, _ in ledger.declared(IPV4)}


def test_session_affinity_survives_a_full_transaction() -> None:
    """A reload neither flushes nor declares again the maps that packets have written."""
    made = pipeline(service(affinity_timeout=60), TWO)
    ledger = ledger_of(made)
    ledger.elements["ip nftproxy"]["tcp-affinity-60"] = {"198.51.100.7 . 10.96.0.10 . 80": "10.1.1.4"}
    ledger.apply(made.full_transaction({family: ledger.installed(family) for family in Family}))
    assert ledger.elements["ip nftproxy"]["tcp-affinity-60"] == {"198.51.100.7 . 10.96.0.10 . 80": "10.1.1.4"}


def test_another_versions_table_is_replaced() -> None:
    """A table with rules of other templates is replaced as a whole."""
    old = templates()[TABLE_TEMPLATE].replace("refuse", "reset")
    text = old.replace("cluster-ips", "virtual-ips")
    text = text.replace("{{ endings.no_endpoint }}", "goto reset").replace("{{ endings.nodeport_no_endpoint }}", "drop")
    service_text = templates()["service.nft.j2"].replace("cluster-ips", "virtual-ips")
    other = Renderer({**templates(), TABLE_TEMPLATE: text, "service.nft.j2": service_text})
    made = pipeline(service())
    ledger = ledger_of(pipeline(service("shop/cart"), renderer=other), made)
    assert ledger.held(IPV4) == set(made.generations[IPV4].elements())
    assert (NftKind.SET, "virtual-ips") not in chains(ledger)


def test_a_canarys_table_says_that_another_proxy_is_there() -> None:
    """The table's comment says that the agent serves only some Services, in both families, loads and trials."""
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


def test_no_event_is_lost_after_a_template_failed() -> None:
    """A Service whose template fails delays other Services.  No event is lost once that Service has gone."""
    failing = templates()["service.nft.j2"] + "{% if '10.96.0.66' in cluster_ips %}\n{{ nothing }}\n{% endif %}\n"
    made = pipeline(renderer=Renderer({**templates(), "service.nft.j2": failing}))
    with pytest.raises(
        TemplateError, match=r"^NFT108: service\.nft\.j2: line \d+: UndefinedError: 'nothing' is undefined$"
    ):
        made.ingest([Put(service("blog/bad", cluster_ips=["10.96.0.66"])), Put(service())])
    made.ingest([Removed(Service, key("blog/bad"))])
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
    """Only the ports of touched Services are rendered, once a family, and all other blocks are the same objects."""
    counting = Counting()
    many = [
        service(f"shop/s{number}", cluster_ips=[f"10.96.0.{100 + number}", f"fd00:96::{100 + number}"])
        for number in range(20)
    ]
    made = pipeline(*many, *(slice_of(str(each.key)) for each in many), renderer=counting)
    before = {family: dict(generation.blocks) for family, generation in made.generations.items()}
    counting.ports = counting.tables = 0
    made.ingest([event])
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
    """In any cluster, another slice leaves the blocks of all other Services the same objects."""
    made = pipeline(*cluster, node=None)
    before = {family: dict(generation.blocks) for family, generation in made.generations.items()}
    made.ingest([Put(slice_of(name, ["10.1.0.9@node-a"], ports=["80", "web:80", "dns:53/udp"], suffix="more"))])
    for family, generation in made.generations.items():
        others = {o: b for o, b in before[family].items() if not (isinstance(o, PortKey) and o.service == key(name))}
        assert all(generation.blocks[owner] is block for owner, block in others.items())


def test_only_the_families_asked_for_get_a_transaction() -> None:
    """A family outside of `families` gets a new generation, but no transaction."""
    made = pipeline(service(cluster_ips=["10.96.0.10", "fd00::10"]))
    steps = Steps(made.ingest_in_steps([Put(slice_of()), Put(slice_of(endpoints=["fd00::4"], suffix="6"))], [IPV6]))
    list(steps)
    assert steps.result.keys() == {IPV6}
    assert elements(made, IPV4, "tcp-endpoints")


# The first load, piece by piece


def pieces_of(settings: Settings, cluster: Iterable[Given]) -> tuple[Pipeline, list[Transaction]]:
    """A pipeline that got all of these at once, and the transactions that fill tables with it."""
    made = Pipeline("node-a", settings, renderer())
    return made, [each for each in made.fill_in_steps([Put(each) for each in cluster], {}) if each]


@quick()
@given(all_settings, clusters)
def test_what_is_loaded_in_pieces_is_what_is_loaded_at_once(settings: Settings, cluster: list[Given]) -> None:
    """For any cluster, the pieces make the same tables as a full load, and the pipeline continues from them."""
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
    assert list(made.losses.all()) == list(whole.losses.all())
    assert made.health_checks.by_port == whole.health_checks.by_port
    assert made.flows.pop_due() == whole.flows.pop_due()
    for event in (Put(service("shop/new", cluster_ips=["10.96.7.7"])), Put(slice_of("shop/new", ["10.1.0.9"]))):
        assert made.ingest([event]) == whole.ingest([event])


def test_hooks_come_last() -> None:
    """Each piece has a bounded number of Services, and only the last piece has base chains.

    The same holds for base chains that come with a Service.
    """
    limits = {STEP: {"client-connections": "5"}}
    many = [
        service(f"shop/s{i}", cluster_ips=[f"10.97.{i >> 8}.{i & 255}"], annotations=limits.get(i, {}))
        for i in range(3 * STEP)
    ]
    _, pieces = pieces_of(Settings(extensions=INSTALLED), [*many, slice_of(f"shop/s{STEP}")])
    assert len(pieces) == 5
    assert ["hook" in each.text for each in pieces] == [False] * 4 + [True]
    assert pieces[-1].text.count("jump screen comment") == 2
    assert [each.text.count(" . tcp . 80 : ") for each in pieces] == [0, STEP + 1, STEP, STEP, 0]


def test_a_large_service_is_a_piece_by_itself() -> None:
    """A piece ends after some thousands of elements, however few Services it has."""
    hosts = [f"10.{number >> 8}.{number & 255}.4" for number in range(256, 256 + STEP_ELEMENTS)]
    crowd = [service(f"shop/s{i}", cluster_ips=[f"10.97.0.{i}"]) for i in (1, 2)]
    _, pieces = pieces_of(Settings(extensions=INSTALLED), [*crowd, *(slice_of(str(each.key), hosts) for each in crowd)])
    assert sum(each.size().elements >= STEP_ELEMENTS for each in pieces) == 2


def test_two_processes_make_the_same_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that another process has compiled are the same transactions and blocks, and changes continue from them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    many = [service(f"shop/s{i}", cluster_ips=[f"10.97.{i >> 8}.{i & 255}"]) for i in range(4 * STEP)]
    cluster = [*map(Put, many), *(Put(slice_of(str(each.key))) for each in many[::3])]
    alone, both = (
        Pipeline("node-a", Settings(extensions=INSTALLED), renderer(), each=each) for each in (one_by_one, in_two)
    )
    assert list(alone.fill_in_steps(cluster, {})) == list(both.fill_in_steps(cluster, {}))
    for event in (Put(slice_of("shop/s1")), Removed(Service, key("shop/s300"))):
        assert alone.ingest([event]) == both.ingest([event]) != Transaction()
    assert alone.generations[IPV4].blocks == both.generations[IPV4].blocks


# Properties


ANNOTATIONS = (
    ("weights", "zone:a=2,zone:b=1"),
    ("algorithm", "round-robin"),
    ("algorithm", "least-connections"),
    ("failover", "silent,refused"),
)
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
    *(service(annotations={name: value}) for name, value in ANNOTATIONS if name in {each.name for each in OPTIONS}),
)


class NoCache(ChoiceCache):
    """A cache without entries."""

    def choose(self, endpoints: ServiceEndpoints, port: ServicePort) -> Choice:
        """Choose anew."""
        return choose(endpoints, port)


@pytest.mark.slow
@quick(25)
@given(st.sampled_from(CROWDED), st.sampled_from([90, 120, 210]), steps)
def test_rules_of_many_endpoints_do_not_depend_on_history(
    web: Service, count: int, history: list[tuple[str, int, int]]
) -> None:
    """After any changes to a Service with many endpoints, its rules equal those made from scratch."""
    crowd = Crowd(count)
    made = pipeline(web, *crowd.slices)
    ledger = ledger_of(made)
    for step in history:
        ledger.apply(made.ingest(crowd.change(step)))
        anew = pipeline(web, node=crowd.node)
        anew.choices = NoCache()
        anew.ingest(list(map(Put, crowd.slices)))
        for family in Family:
            assert made.generations[family].blocks == anew.generations[family].blocks
    for family in Family:
        assert ledger.held(family) >= set(made.generations[family].used_elements())
        assert set(made.generations[family].used_elements()) == set(anew.generations[family].elements())


@quick()
@given(all_settings, clusters)
def test_every_number_finds_its_endpoints(settings: Settings, cluster: list[Given]) -> None:
    """The number of a list leads to a chain that draws from N endpoints, and the front has exactly slots 0 to N-1."""
    made = fresh(settings, cluster)
    for family, generation in made.generations.items():
        values = {(each.container, each.key): each.value for each in generation.elements()}
        slots = set()
        for prefix, name in itertools.product(("", "nodeport-"), ("services", "short-circuit")):
            for front, number in elements(made, family, f"{prefix}{name}").items():
                chain = values[f"{prefix}draws", number].removeprefix("goto ")
                assert (NftKind.CHAIN, chain) in generation.declarations
                if chain == "undrawn":
                    continue
                match = _DRAWS.fullmatch(chain)
                assert match, chain
                assert (NftKind.CHAIN, f"translate-{match['list']}") in generation.declarations
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
    """Every served front is in `fronts`, has at most one external policy, and has allowed sources only if guarded."""
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


FAILOVER_NAMES = re.compile(
    r"\b(watch|watched|retry|retried|unretried|unanswered|stuck|silent|refused|crowded|[a-z]+-shares|pings?|external-ips)\b"
)
"""The names of sets and chains for failover, and for pings and closed ports of external addresses."""


@pytest.mark.parametrize("failures", ["silent", "refused", "gone", "silent,refused,gone"])
def test_services_without_failover_have_not_a_byte_more_of_rules(failures: str) -> None:
    """Without the words no rule is about them.  A Service with failover leaves another Service's elements as they are,
    and leaves nothing behind.
    """
    plain = service("shop/plain", type="NodePort", cluster_ips=["10.96.0.20"], ports=["http:80:30081"])
    made = pipeline(plain, slice_of("shop/plain"), external_ip_cidrs=networks(["203.0.113.0/24"]))
    before, own = made.full_transaction({}).text, set(made.generations[IPV4].elements())
    assert FAILOVER_NAMES.findall(before) == []
    asking = service("shop/asking", type="NodePort", ports=["http:80:30080"], annotations={"failover": failures})
    made.ingest([Put(asking), Put(slice_of("shop/asking"))])
    assert bool(FAILOVER_NAMES.findall(made.full_transaction({}).text)) is (failures != "gone")
    added = set(made.generations[IPV4].elements()) - own
    assert own <= set(made.generations[IPV4].elements())
    assert not [each for each in added if "10.96.0.20" in each.text or "30081" in each.text]
    made.ingest([Removed(Service, asking.key), Removed(EndpointSlice, key("shop/asking-1"))])
    assert made.full_transaction({}).text == before


def test_skeleton_blocks_are_the_nodes() -> None:
    """Each generation has one block for the node itself beside the blocks of Service ports."""
    made = pipeline(service(), slice_of())
    for generation in made.generations.values():
        assert [owner for owner in generation.blocks if not isinstance(owner, PortKey)] == [SKELETON]
        assert generation.blocks[SKELETON].declarations


def test_the_skeleton_is_there_before_any_event() -> None:
    """A new pipeline has the rules of a node without Services, and has tried its templates."""
    made = Pipeline("node-a", Settings(extensions=INSTALLED), renderer())
    assert all(generation.blocks[SKELETON].declarations for generation in made.generations.values())
    assert made.ingest([]) == Transaction()


def test_ports_that_go_take_their_blocks_along() -> None:
    """A Service that loses a port, or all ports, leaves no block of a lost port behind."""
    made = pipeline(service(ports=["a:80", "b:81"]))
    made.ingest([Put(service(ports=["b:81"]))])
    assert owners(made) == ["shop/web:b"]
    made.ingest([Put(service(ports=[]))])
    assert owners(made) == ["shop/web"]
    made.ingest([Put(service(cluster_ips=["fd00:96::10"]))])
    assert owners(made) == []
    assert list(made.generations[IPV4].elements()) == list(made.generations[IPV4].blocks[SKELETON].elements)


def test_nothing_is_kept_of_what_has_gone() -> None:
    """After a Service has gone, the pipeline keeps none of its ports and nothing about them."""
    made = pipeline(service("shop/older"), service(created=1, ports=["a:80", "b:81", "c:82"]))
    made.ingest([Removed(Service, key("shop/older")), Removed(Service, key("shop/web"))])
    assert owners(made) == []
    assert (made.losses.by_service, made._compiled) == ({}, {})


def test_services_of_one_batch_are_written_in_the_order_of_their_names() -> None:
    """The transaction is the same in every process, although the order of a set is not."""
    numbers = [f"{number:02}" for number in range(40)]
    batch = [Put(service(f"shop/s{number}", cluster_ips=[f"10.96.1.{int(number)}"])) for number in reversed(numbers)]
    made = pipeline()
    made.ingest(batch)
    assert list(elements(made, IPV4, "cluster-ips")) == [f"10.96.1.{int(number)}" for number in numbers]


def test_a_node_that_changes_together_with_a_service_changes_all_services() -> None:
    """Every Service follows the node's zone, although another event of the batch touches less."""
    made = pipeline(service(), slice_of(endpoints=["10.1.1.4 zone=a", "10.1.1.5 zone=b"]), node=node(zone="a"))
    made.ingest([Put(node(zone="b")), Put(service("shop/cart", cluster_ips=["10.96.0.20"]))])
    assert elements(made, IPV4, "tcp-endpoints") == {"10.96.0.10 . 80 . 0.0.0.0": "10.1.1.5 . 8080"}


def owners(made: Pipeline) -> list[str]:
    """The Service ports that have a block in the IPv4 table."""
    return [str(owner) for owner in made.generations[IPV4].blocks if isinstance(owner, PortKey)]


def test_a_kind_that_is_listed_anew_is_replaced() -> None:
    """A list of EndpointSlices removes the endpoints of slices that it lacks."""
    made = pipeline(service(), TWO)
    made.ingest([Listed(EndpointSlice, ())])
    assert elements(made, IPV4, "tcp-endpoints") == {}


# ---- Services in quarantine ----------------------------------------------------------------------------------------

WEB, CART = service("shop/web"), service("shop/cart", cluster_ips=["10.96.0.20", "fd00:96::20"], ports=["a:80", "b:81"])
WEB_PODS, CART_PODS = (
    slice_of(endpoints=["10.1.0.4"]),
    slice_of("shop/cart", [f"10.1.0.{n}" for n in range(5, 12)], ports=["a:80"]),
)
CART_KEY = key("shop/cart")


def held(made: Pipeline) -> dict[Family, tuple[frozenset[Element], frozenset[str]]]:
    """The contents of the pipeline's generations: elements, and the names of declarations."""
    return {
        family: (frozenset(each.elements()), frozenset(name for _, name in each.declarations))
        for family, each in made.generations.items()
    }


def withhold(made: Pipeline, *services: ObjectKey) -> None:
    """Withhold Services from both families, and reload the kernel without them."""
    for family in Family:
        made.withhold(family, services)
    made.full_transaction({})


def test_a_withheld_service_has_no_rules() -> None:
    """While a Service is withheld its rules are left out, and once it is admitted they are back."""
    made = pipeline(WEB, WEB_PODS, CART, CART_PODS)
    withhold(made, CART_KEY)
    assert held(made) == held(pipeline(WEB, WEB_PODS))
    assert not made.ingest([Put(slice_of("shop/cart", ["10.1.0.9"], ports=["a:80"]))])
    made.ingest([Put(CART_PODS)])
    assert made.withheld == {family: {CART_KEY: ""} for family in Family}
    assert "10.96.0.20" in made.admit(IPV4, CART_KEY).text
    made.admit(IPV6, CART_KEY)
    assert held(made) == held(pipeline(WEB, WEB_PODS, CART, CART_PODS))
    assert made.withheld == {family: {} for family in Family}


@pytest.mark.parametrize(("family", "other"), [(IPV4, IPV6), (IPV6, IPV4)])
def test_a_family_is_withheld_by_itself(family: Family, other: Family) -> None:
    """Withholding a Service from one family leaves its rules in the other family."""
    both = service("shop/both", cluster_ips=["10.96.0.30", "fd00:96::30"])
    made = pipeline(WEB, WEB_PODS, both)
    made.withhold(family, [both.key])
    made.full_transaction({})
    assert held(made)[family] == held(pipeline(WEB, WEB_PODS))[family]
    assert held(made)[other] == held(pipeline(WEB, WEB_PODS, both))[other]
    assert made.contributors(family) == [WEB.key]
    assert made.contributors(other) == [both.key, WEB.key]


def test_a_rolled_back_service_leaves_no_chain() -> None:
    """Chains that only the refused Service needs aren't taken to be in the kernel."""
    made = pipeline(WEB, WEB_PODS, CART, CART_PODS)
    withhold(made, CART_KEY)
    before = held(made)
    made.pop_updated()
    made.admit(IPV4, CART_KEY)
    made.revoke(IPV4, CART_KEY, "still no")
    assert held(made) == before
    assert made.pop_updated() == set()
    assert made.withheld == {IPV4: {CART_KEY: "still no"}, IPV6: {CART_KEY: ""}}
    assert "chain tcp-endpoints-of-7 {" in made.admit(IPV4, CART_KEY).text


def test_a_trial_is_a_load_without_some_services() -> None:
    """A trial loads a whole table without some Services, and leaves the ledger unchanged."""
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
    """Updates are exactly the Services that changed, came, went or were withheld since the last report."""
    made = pipeline(WEB, CART)
    assert made.pop_updated() == {WEB.key, CART_KEY}
    assert made.pop_updated() == set()
    made.ingest([Put(CART_PODS)])
    assert made.pop_updated() == {CART_KEY}
    made.ingest([Removed(Service, WEB.key)])
    made.withhold(IPV4, [CART_KEY])
    assert made.pop_updated() == {WEB.key, CART_KEY}


def test_a_deleted_service_is_no_longer_withheld() -> None:
    """A withheld Service that goes and comes again is served like any other."""
    made = pipeline(WEB, CART)
    withhold(made, CART_KEY)
    made.ingest([Removed(Service, CART_KEY)])
    assert made.withheld == {family: {} for family in Family}
    made.ingest([Put(CART)])
    assert held(made) == held(pipeline(WEB, CART))
