"""A kernel that follows a pipeline through anything: it always holds the rules of the present objects.

After any events, in any batches, and after any writes of other programs to our tables, each step ends with

    the contents of the kernel  =  the generation that was kept up to date  =  a generation made from nothing

in full: every set, map and chain as nft prints it, and every element.  Chains, sets and maps that are no
longer used may stay until everything is loaded anew.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import structs
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.strategies.histories import clusters, events, survivors, undoing, updates
from nftproxy_conformance.strategies.objects import Given, all_settings, families

from nftproxy.installed import INSTALLED
from nftproxy.kernel.capabilities import probe
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.events import Event, HostAddresses, Put
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.rules.renderer import TABLE_TEMPLATE, Renderer
from nftproxy.rules.ruleset import Declaration, Element, NftKind
from nftproxy.rules.transaction import Transaction
from tests.support.factories import renderer, templates
from tests.system.fuzz.departures import departures
from tests.system.fuzz.effort import Tally, by_table, effort
from tests.system.fuzz.host import Contents, Host, Printed

pytestmark = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
    pytest.mark.usefixtures("small_tables"),
    pytest.mark.slow,
]


@functools.cache
def other_renderer() -> Renderer:
    """Templates of another version, whose table has another shape."""
    text, place = templates()[TABLE_TEMPLATE], "  set nodeport-ips {\n"
    another = f"  set another {{\n    typeof meta l4proto\n  }}\n{place}"
    assert place in text
    return Renderer({**templates(), TABLE_TEMPLATE: text.replace(place, another)})


@functools.cache
def widest() -> bool:
    """Whether this machine's nft has the capability `wide_maps`."""
    return probe().capabilities.wide_maps


MakeRenderer = Callable[[], Renderer]
renderers: st.SearchStrategy[MakeRenderer] = st.sampled_from([renderer, renderer, other_renderer])
batches = st.lists(events, min_size=1, max_size=4)


def _by_packet(written: Declaration, family: Family) -> str:
    """The element that a client's packet to a front would write, with the fields that the declaration names.

    Its timeout is longer than any test takes.  Real timeouts of a few seconds could pass between two steps of a test.
    """
    client, front, pod = {
        Family.IPV4: ("198.51.100.7", "10.96.0.10", "10.1.0.4"),
        Family.IPV6: ("2001:db8::7", "fd00:96::10", "fd00:1::4"),
    }[family]
    fields = {f"{family.value} saddr": client, f"{family.value} daddr": front, "meta l4proto": "tcp"}
    (types,) = (line.removeprefix("typeof ") for line in written.body if line.startswith("typeof "))
    key, has_value, _ = types.partition(" : ")
    text = " . ".join(fields.get(field, "80") for field in key.split(" . "))
    if any(line.startswith("timeout ") for line in written.body):
        text += " timeout 1h"
    return f"{text} : {pod}" if has_value else text


class Following(RuleBasedStateMachine):
    """A cluster, a pipeline that follows it, and a kernel that follows that."""

    def __init__(self, tally: Tally, printed: Printed) -> None:
        super().__init__()
        self._tally = tally
        self._printed = printed
        self._host = Host()
        self._there: list[Given] = []

    @initialize(settings=all_settings, cluster=clusters, make_renderer=renderers)
    def start(self, settings: Settings, cluster: list[Given], make_renderer: MakeRenderer) -> None:
        """Start a proxy on a node that never had a proxy."""
        self._there = cluster
        self.restart(settings, make_renderer)

    def teardown(self) -> None:
        """Give the namespace back."""
        self._host.close()
        self._tally.count("machines")

    # The cluster

    @rule(batch=batches)
    def follow(self, batch: Sequence[Event]) -> None:
        """Events of a batch are a single transaction."""
        self._apply(self._take(batch))

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        """A field of an object changes."""
        if self._there:
            self.follow([Put(data.draw(updates(data.draw(st.sampled_from(self._there)))))])
            self._tally.count("fields changed")

    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        """Objects go, whether by an event or missing in a listing."""
        if any(not isinstance(value, HostAddresses) for value in self._there):
            self.follow([data.draw(departures(self._there))])
            self._tally.count("departures")

    @rule(batch=batches)
    def try_first(self, batch: Sequence[Event]) -> None:
        """A transaction that is only checked is accepted, changes nothing, and is accepted again."""
        transaction = self._take(batch)
        before = self._contents()
        self._host.check(transaction)
        assert self._contents() == before
        self._apply(transaction)

    @rule(batch=batches)
    def follow_there_and_back(self, batch: Sequence[Event]) -> None:
        """Undoing events restores the kernel, but for chains that are kept, with the elements that lead there."""
        knows_addresses = any(isinstance(value, HostAddresses) for value in self._there)
        batch = [event for event in batch if knows_addresses or not _tells_addresses(event)]
        there, before = self._there, self._contents()
        self.follow(batch)
        self.holds()
        self.follow(undoing(there, self._there))
        after = self._contents()
        for family in Family:
            generation = self._made.generations[family]
            kept = frozenset(generation.elements()) - frozenset(generation.used_elements())
            assert after[family].elements - kept == before[family].elements - kept
            assert after[family].rest == before[family].rest
            used = self._printed.declared(self._made, family)
            assert used.items() <= before[family].declared.items() & after[family].declared.items()
        self._tally.count("batches undone")

    # The proxy

    @rule()
    def reload(self) -> None:
        """Everything is loaded anew, and elements that packets have written stay, as far as their sets are declared."""
        before = self._contents()
        self._load()
        for family, contents in self._contents().items():
            declared = {name for _, name in contents.declared}
            assert contents.remembered == {it for it in before[family].remembered if it.container in declared}

    @rule(settings=all_settings, make_renderer=renderers)
    def restart(self, settings: Settings, make_renderer: MakeRenderer) -> None:
        """Another process takes over, perhaps with another configuration or of another version."""
        wide_maps = settings.capabilities.wide_maps and widest()
        self._settings = Settings(
            settings.config, structs.replace(settings.capabilities, wide_maps=wide_maps), INSTALLED
        )
        self._renderer = make_renderer()
        self._made = self._whole()
        self._load()

    @rule(batch=batches, more=batches)
    def lose(self, batch: Sequence[Event], more: Sequence[Event]) -> None:
        """A transaction doesn't happen, so everything is loaded, with the events since."""
        self._take(batch)
        self._take(more)
        self._load()

    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        """A Service is left out of a load, its rules are refused when they are tried again, and then they are taken."""
        if self._made.state.services:
            service = data.draw(st.sampled_from(sorted(self._made.state.services)))
            for family in Family:
                self._host.check(self._made.trial(family, [service]))
                self._made.withhold(family, [service])
            self._load()
            for family in Family:
                self._made.admit(family, service)
                self._made.revoke(family, service, "no")
            for family, found in self._contents().items():
                generation = self._made.generations[family]
                assert found.elements == frozenset(generation.elements())
                assert found.declared.keys() == generation.declarations.keys()
            for family in Family:
                self._apply(self._made.admit(family, service))
            self._tally.count("Services quarantined")

    @rule(family=families)
    def read(self, family: Family) -> None:
        """A proxy reads the elements from the kernel that it wrote."""
        assert self._host.elements(family) == frozenset(self._made.generations[family].elements())

    # Other programs and packets

    @rule(data=st.data(), family=families)
    def remember(self, data: st.DataObject, family: Family) -> None:
        """Packets write to a map of session affinity, or to a set of clients or fronts."""
        used = self._made.generations[family].used_declarations().values()
        dynamic = [each for each in used if each.is_dynamic]
        if dynamic:
            written = data.draw(st.sampled_from(dynamic))
            entry = _by_packet(written, family)
            self._apply(Transaction(f"add element {family.table} {written.name} {{ {entry} }}\n"))

    @rule(data=st.data(), family=families)
    def be_damaged(self, data: st.DataObject, family: Family) -> None:
        """Somebody else changes our tables, and loading everything anew repairs them."""
        self._host.apply(Transaction(data.draw(harms(family, self._host.contents(family)))))
        self._load()
        self._tally.count("damages repaired")

    # The invariant

    @invariant()
    def holds(self) -> None:
        """The kernel holds the generation, which equals a generation made from nothing."""
        whole = self._whole()
        for family, found in self._contents().items():
            kept, wanted = self._made.generations[family], whole.generations[family]
            elements = frozenset(wanted.elements())
            assert found.elements == frozenset(kept.elements())
            assert elements == frozenset(kept.used_elements())
            assert kept.used_declarations() == wanted.used_declarations()
            assert self._printed.declared(whole, family).items() <= found.declared.items()
            assert found.declared.keys() <= kept.declarations.keys()
            assert found.rest == self._rest[family]
            self._tally.count("elements compared", len(elements))
            self._tally.count("declarations compared", len(found.declared))
        assert self._made.losses.by_service == whole.losses.by_service

    def _whole(self) -> Pipeline:
        """A pipeline that has seen only the present objects."""
        made = Pipeline("node-a", self._settings, self._renderer)
        made.ingest([Put(value) for value in self._there])
        return made

    def _take(self, batch: Sequence[Event]) -> Transaction:
        self._there = survivors([[Put(value) for value in self._there], batch])
        return self._made.ingest(batch)

    def _apply(self, transaction: Transaction) -> None:
        self._host.apply(transaction)
        self._tally.count("transactions", int(bool(transaction)))
        self._tally.count("Services that choose by a table", by_table(self._made.state.services.values()))

    def _load(self) -> None:
        """Load everything.  Then nothing else is there."""
        self._apply(self._made.full_transaction(self._host.compared(self._made)))
        found = self._contents()
        self._rest = {family: contents.rest for family, contents in found.items()}
        for family, contents in found.items():
            assert contents.declared == self._printed.declared(self._made, family)
            assert re.fullmatch(rf'table {family.table} {{ comment "{TABLE} [0-9a-f]{{16}}" }}', contents.rest)

    def _contents(self) -> dict[Family, Contents]:
        return {family: self._host.contents(family) for family in Family}


def _tells_addresses(event: Event) -> bool:
    return isinstance(event, Put) and isinstance(event.object, HostAddresses)


STRANGER = {Family.IPV4: "198.51.100.99", Family.IPV6: "2001:db8::99"}


def harms(family: Family, contents: Contents) -> st.SearchStrategy[str]:
    """Damages to one of our tables, by accident or not, as nft text."""
    table, stranger = family.table, STRANGER[family]
    whole = [
        "flush ruleset\n",
        f"delete table {table}\n",
        f"delete table {table}\nadd table {table}\n",
        f"add chain {table} strange {{ type filter hook input priority 5; policy drop; }}\n",
        f"add set {table} strange {{ typeof {family.value} daddr; }}\n",
        f"add chain {table} strange\nadd rule {table} nat-prerouting jump strange\n",
    ]
    names = list(contents.declared)
    chains = [name for kind, name in names if kind is NftKind.CHAIN]
    base = [name for name in chains if " hook " in contents.declared[NftKind.CHAIN, name]]
    added = [
        Element("cluster-ips", stranger, ""),
        Element("services", f"{stranger} . tcp . 9", stranger),
        Element("service-cidrs", stranger, ""),
        Element("hairpin", f"{stranger} . {stranger} . udp . 9", ""),
    ]
    parts = [
        st.sampled_from(whole),
        st.sampled_from(names).map(lambda it: f"flush {it[0].value} {table} {it[1]}\n"),
        st.sampled_from(chains).map(lambda name: f"add rule {table} {name} counter drop\n"),
        st.sampled_from(chains).map(lambda name: f"insert rule {table} {name} meta l4proto {{ tcp, udp }} accept\n"),
        st.sampled_from(added).map(lambda it: f"add element {table} {it.container} {{ {it.text} }}\n"),
        st.sampled_from(base).map(lambda name: f"add chain {table} {name} {{ policy drop; }}\n"),
        st.just(f"add table {table} {{ flags dormant; }}\n"),
    ]
    if contents.elements:
        held = sorted(contents.elements)
        parts.append(st.sampled_from(held).map(lambda it: f"delete element {table} {it.container} {{ {it.text} }}\n"))
    return st.one_of(parts)


def test_the_kernel_follows(tally: Tally) -> None:
    """Through hundreds of steps of any kind the kernel holds just the rules of the present objects."""
    with closing(Printed()) as printed:
        machine = cast("type[Following]", functools.partial(Following, tally, printed))
        run_state_machine_as_test(machine, settings=effort(6, 1_500, steps=40))
