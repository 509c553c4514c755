"""The pure middle as one object: events in, transactions out.

    state -> compile -> render -> generation -> diff -> transaction

An event touches some Services; only their ports are compiled and rendered again, only their blocks are compared, and
only the difference is sent.  The same objects give the same generations in whatever order their events came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence

from nftproxy.model.addresses import Family
from nftproxy.model.events import Event
from nftproxy.model.objects import ObjectKey
from nftproxy.model.settings import Settings
from nftproxy.model.stages import Stage
from nftproxy.model.steps import Steps, finish
from nftproxy.policy.compile import PortKey, compile_service, compile_table, port_keys
from nftproxy.policy.counts import CountedFronts
from nftproxy.policy.facts import TableFacts
from nftproxy.policy.flows import Flows
from nftproxy.policy.fronts import Lost, lost_claims
from nftproxy.policy.health_checks import HealthChecks
from nftproxy.policy.kept import MOST_AT_ONCE, Kept
from nftproxy.policy.localhost import LocalhostPorts
from nftproxy.policy.state import ClusterState, Touched
from nftproxy.rules.render import Renderer
from nftproxy.rules.ruleset import EMPTY, Block, Change, Generation, Owner, Savepoint
from nftproxy.rules.transaction import (
    BESIDE_ANOTHER,
    Installed,
    Transaction,
    begin_transaction,
    change_transaction,
    delete_transaction,
    hook_transaction,
    is_refilled,
    join,
    load_transaction,
)

SKELETON = "this node"
"""The owner of each generation's skeleton and of the node's addresses in it."""

STEP = 250
"""Services that are compiled before others get their turn: with 10 endpoints each this takes 20 ms."""
STEP_ELEMENTS = 5_000
"""The same as elements: one Service may have as many as thousands of others."""


class Pipeline:
    """Turns what happens in the cluster into what must happen in the kernel, for the families given.

    `losses` holds what Services claim but don't get, by Service; `flows` says which UDP flows must go, `health_checks`
    what health-check node ports answer, `localhost_ports` what serves node ports at localhost.  `counted` says whose
    fronts are counted.
    `withheld` has, by family, the Services that contribute no rules, each with the reason, "" until that is known
    (agent/quarantine.py decides who that is).
    `kept` is what was decided about Services with many endpoints, to decide faster next time.
    `lap` is called whenever some work is done, with its stage: whoever keeps time puts a stopwatch here.

    Raises:
        TemplateError: a template fails.
    """

    def __init__(
        self, node_name: str, settings: Settings, renderer: Renderer, families: Iterable[Family] = Family
    ) -> None:
        self.settings = settings
        self.lap: Callable[[Stage], object] = lambda _: None
        self.state = ClusterState(node_name, settings.config)
        self.generations = {family: Generation(family) for family in families}
        self.flows = Flows(settings, self.generations)
        self._renderer = renderer
        self._owned: dict[ObjectKey, list[PortKey]] = {}
        self.kept = Kept()
        self.health_checks = HealthChecks()
        self.localhost_ports = LocalhostPorts(settings.config)
        self.counted = CountedFronts(settings.config)
        self.losses: dict[ObjectKey, list[Lost]] = {}
        self.withheld: dict[Family, dict[ObjectKey, str]] = {family: {} for family in self.generations}
        self._fresh_losses: list[Lost] = []
        self._updated: set[ObjectKey] = set()
        self._savepoint: Savepoint | None = None
        self._touched = Touched(table=True)
        self.apply(())

    def apply(self, events: Iterable[Event]) -> Transaction:
        """Take events in; the transaction that lets the kernel follow in all families, empty if no rule changes."""
        return join(finish(self.applying(events)).values())

    def applying(
        self, events: Iterable[Event], families: Collection[Family] = tuple(Family)
    ) -> Generator[None, None, dict[Family, Transaction]]:
        """As `apply`, with the transaction of each family whose rules change, and stopping after each piece of work.

        A piece is so many objects of a listing, `STEP` Services, or `STEP_ELEMENTS`.

        These are good moments to do something else.

        Until the end nothing of it is to be seen but in `state`.  Only for some families are there transactions: what
        must be loaded as a whole in any case needs no text that follows a change.  The first Services, if they are for
        no family, come piece by piece, so that the memory for a change of 100,000 elements isn't needed.
        """
        self._touched.merge((yield from self.state.applying(events)))
        self.lap(Stage.STATE)
        if not families and not any(generation.blocks.keys() - {SKELETON} for generation in self.generations.values()):
            yield from self._fill()
            return {}
        changes = yield from self._update()
        made = {
            family: change_transaction(family, change)
            for family, change in changes.items()
            if change and family in families
        }
        self.lap(Stage.DIFF)
        return made

    def filling(
        self, events: Iterable[Event], installed: Mapping[Family, Installed | None]
    ) -> Generator[Transaction, None, None]:
        """As `applying` for the first Services, where no hook of ours is in force: transactions that fill the tables.

        One comes after each piece of work, as soon as it is known, so that the kernel may have it while the next is
        made; some are empty.  What they make lies idle until the last, which hooks it up.  The generations grow with
        them.
        """
        for _ in (steps := Steps(self.state.applying(events))):
            yield Transaction()
        self._touched.merge(steps.result)
        self.lap(Stage.STATE)
        services = self._touched_services()
        self._put_skeletons()
        yield self._of_each(lambda made: begin_transaction(made, self._shape(made.family), installed.get(made.family)))
        for family, change in self._put_services(services):
            change.leave_out_base_chains()  # they come last of all
            made = change_transaction(family, change)
            self.lap(Stage.DIFF)
            yield made
        self._follow(services)
        yield self._of_each(hook_transaction)

    def _fill(self) -> Generator[None, None, None]:
        """Put the first Services into the generations."""
        services = self._touched_services()
        self._put_skeletons()
        for _ in self._put_services(services):
            self.lap(Stage.DIFF)
            yield
        self._follow(services)

    def _put_skeletons(self) -> None:
        for family, generation in self.generations.items():
            generation.update(self._table_blocks(family, self._touched.table))

    def _put_services(self, services: Sequence[ObjectKey]) -> Iterator[tuple[Family, Change]]:
        """Put the blocks of Services into generations that have none, piece by piece; what each piece adds."""
        for start in range(0, len(services), STEP):
            for family, generation in self.generations.items():
                blocks: dict[Owner, Block] = {}
                for _ in self._compile(family, services[start : start + STEP], blocks, None):
                    yield family, generation.update(blocks)
                    blocks.clear()
                yield family, generation.update(blocks)

    def _of_each(self, make: Callable[[Generation], Transaction]) -> Transaction:
        """What is made of each generation, as one transaction."""
        made = join(map(make, self.generations.values()))
        self.lap(Stage.DIFF)
        return made

    def full_transaction(self, installed: Mapping[Family, Installed | None]) -> Transaction:
        """The transaction after which the kernel holds exactly the generations, given what it holds now."""
        return join(self.load(family, installed.get(family)) for family in self.generations)

    def load(self, family: Family, installed: Installed | None) -> Transaction:
        """The part of `full_transaction` that is about one family."""
        generation = self.generations[family]
        generation.forget_unused()
        return load_transaction(generation, self._shape(family), installed)

    def refilled(self, family: Family, installed: Installed | None) -> Generation | None:
        """What a load is to make of a table that stays in place, to compare it with; None for one that is replaced."""
        generation = self.generations[family]
        generation.forget_unused()
        return generation if installed and is_refilled(installed, self._shape(family)) else None

    def trial(self, family: Family, left_out: Collection[ObjectKey]) -> Transaction:
        """What would make a table anew without what some Services contribute: to be checked, not to be applied."""
        owners = {owner for key in left_out for owner in self._owned[key]}
        remaining = self.generations[family].without(owners)
        loaded = load_transaction(remaining, self._shape(family), installed=None)
        return join([delete_transaction(family), loaded])

    def contributors(self, family: Family) -> list[ObjectKey]:
        """The Services that may contribute rules to a family, in the order of their names."""
        return sorted(self._owned.keys() - self.withheld[family].keys())

    def take_updated(self) -> set[ObjectKey]:
        """The Services whose rules were made anew, or that have gone, since this was last called."""
        updated, self._updated = self._updated, set()
        return updated

    def withhold(self, family: Family, services: Iterable[ObjectKey]) -> None:
        """Let Services contribute nothing to a family from now on; a full transaction must follow."""
        services = list(services)
        self.withheld[family] |= dict.fromkeys(services, "")
        self._touch(services)

    def admit(self, family: Family, service: ObjectKey) -> Transaction:
        """Let a Service contribute that was withheld; if the kernel refuses the transaction, call `take_back`."""
        generation = self.generations[family]
        self._savepoint = generation.savepoint(self._owned[service])
        del self.withheld[family][service]
        return self._touch([service]).get(family, Transaction())

    def take_back(self, family: Family, service: ObjectKey, reason: str) -> None:
        """Withhold again, for a reason, the Service that was admitted last."""
        assert self._savepoint is not None, "nothing was admitted"
        self.withheld[family][service] = reason
        self.generations[family].restore(self._savepoint)
        self._touch([service])
        self._updated.discard(service)

    @property
    def quarantined(self) -> set[ObjectKey]:
        """The Services that have no rules in some family, as they exceed a limit or the kernel refuses them."""
        return self.state.excessive.keys() | set().union(*self.withheld.values())

    def all_losses(self) -> Iterator[Lost]:
        """What Services claim but don't get, in the order of the Services."""
        for key in sorted(self.losses):
            yield from self.losses[key]

    def take_losses(self) -> list[Lost]:
        """What Services have come to lose since this was last asked, Service by Service; each loss is returned once."""
        losses, self._fresh_losses = self._fresh_losses, []
        return losses

    def _touch(self, services: Iterable[ObjectKey]) -> dict[Family, Transaction]:
        self._touched.services.update(services)
        return finish(self.applying(()))

    def _update(self) -> Generator[None, None, dict[Family, Change]]:
        """Bring the generations up to what was touched; as long as a template fails, that stays to be done."""
        services = self._touched_services()
        kept = self.kept if len(services) <= MOST_AT_ONCE else None
        blocks = {family: self._table_blocks(family, self._touched.table) for family in self.generations}
        for start in range(0, len(services), STEP):
            if start:
                yield
            for family in self.generations:
                yield from self._compile(family, services[start : start + STEP], blocks[family], kept)
        changes = {family: generation.update(blocks[family]) for family, generation in self.generations.items()}
        self.lap(Stage.DIFF)
        self._follow(services)
        return changes

    def _touched_services(self) -> list[ObjectKey]:
        """The Services to compile, in the order of their names."""
        touched = self._touched
        if touched.everything:
            return sorted(self.state.services.keys() | self._owned.keys())
        return sorted(touched.services | touched.endpoints)

    def _follow(self, services: list[ObjectKey]) -> None:
        """Let all that isn't rules follow these Services; with that everything that was touched is done."""
        touched = self._touched
        claiming = [key for key in services if touched.everything or key in touched.services]
        for key in claiming:
            self._note_ports(key)
            self._note_losses(key)
        self.counted.update(self.state, claiming, self.generations)
        self.flows.update(self.state, services)
        self.health_checks.update(self.state, services, self.withheld)
        self.localhost_ports.update(self.state, services, self.withheld)
        self._updated.update(services)
        self._touched = Touched()
        self.lap(Stage.FOLLOW)

    def _table_blocks(self, family: Family, table: bool) -> dict[Owner, Block]:
        """The skeleton, if it was touched."""
        if not table:
            return {}
        facts = self._table_facts(family)
        self.lap(Stage.COMPILE)
        block = self._renderer.table(facts)
        self.lap(Stage.RENDER)
        return {SKELETON: block}

    def _compile(
        self, family: Family, services: Sequence[ObjectKey], blocks: dict[Owner, Block], kept: Kept | None
    ) -> Generator[None, None, None]:
        """Make the new blocks of some Services, an empty one for each port that is no more."""
        count = 0
        for key in services:
            for owner in self._owned.get(key, ()):
                blocks[owner] = EMPTY
            service = self.state.services.get(key)
            if service is not None and key not in self.withheld[family]:
                for owner, facts in compile_service(self.state, self.settings, family, service, kept=kept):
                    self.lap(Stage.COMPILE)
                    blocks[owner] = self._renderer.port(facts, family.table)
                    self.lap(Stage.RENDER)
                    count += len(blocks[owner].elements)
                    if count >= STEP_ELEMENTS:
                        count = 0
                        yield

    def _shape(self, family: Family) -> str:
        """The shape of the table; it says, too, if another proxy serves the node's other Services."""
        shape = self._renderer.shape(self._table_facts(family))
        return f"{shape}{BESIDE_ANOTHER}" if self.settings.config.is_canary else shape

    def _table_facts(self, family: Family) -> TableFacts:
        return compile_table(self.state, self.settings, family)

    def _note_losses(self, key: ObjectKey) -> None:
        """Keep what a Service claims but doesn't get, a node port that is lost in both families once."""
        known = set(self.losses.pop(key, ()))
        service = self.state.services.get(key)
        if service is not None:
            config = self.settings.config
            lost = [lost for each in self.generations for lost in lost_claims(self.state, config, each, service)]
            if lost:
                self.losses[key] = list(dict.fromkeys(lost))
                self._fresh_losses += [each for each in self.losses[key] if each not in known]

    def _note_ports(self, key: ObjectKey) -> None:
        self.kept.forget(key)
        service = self.state.services.get(key)
        if service is None:
            self._owned.pop(key, None)
            for withheld in self.withheld.values():
                withheld.pop(key, None)
        else:
            self._owned[key] = port_keys(service)
