"""The pure middle as one object: events in, transactions out.

    state -> compile -> render -> generation -> diff -> transaction

An event touches some Services.  Only their ports are compiled and rendered again, only their blocks are compared, and
only the difference is sent.  The same objects give the same generations, in any order of events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from nftproxy.model.addresses import Family
from nftproxy.model.events import Event
from nftproxy.model.mapping import Mapper, one_by_one
from nftproxy.model.objects import ObjectKey, Service
from nftproxy.model.stages import Stage
from nftproxy.model.steps import Steps, finish
from nftproxy.policy.choosing.choice import ChoiceCache
from nftproxy.policy.compile import KnownFronts, PortKey, compile_service, port_keys
from nftproxy.policy.exchanges import Versions, inseparable
from nftproxy.policy.extension import Change, Settings
from nftproxy.policy.facts import TableFacts
from nftproxy.policy.flows import LASTING, Flows
from nftproxy.policy.health_checks import HealthChecks
from nftproxy.policy.losses import Losses
from nftproxy.policy.skeleton import compile_table
from nftproxy.policy.state import ClusterState, Invalidation
from nftproxy.rules.pieces import pieces_of
from nftproxy.rules.renderer import Renderer
from nftproxy.rules.ruleset import (
    EMPTY,
    Block,
    Generation,
    GenerationChange,
    Line,
    Owner,
    Savepoint,
    Statements,
    is_part,
)
from nftproxy.rules.transaction import (
    BESIDE_ANOTHER,
    Installed,
    Transaction,
    change_transaction,
    delete_transaction,
    hook_transaction,
    is_refilled,
    join,
    load_transaction,
    unhooked_transaction,
)

V = TypeVar("V")
Changes = dict[Family, Transaction]
"""The transaction of each family whose rules change."""

Blocks = Mapping[Family, dict[Owner, Block]]
"""Blocks that change, by family."""

SKELETON = "this node"
"""The owner of each generation's skeleton and of the node's addresses in it."""

STEP = 250
"""Most Services that are compiled before other tasks get their turn.  With 10 endpoints each this takes 20 ms."""
STEP_ELEMENTS = 5_000
"""Most elements of a piece of the first load.  A single Service may have as many as thousands of small Services."""
PART = 1_000
"""Elements of a Service that are compiled before others get their turn, some 20 ms.  Most changes go to the kernel in
such parts, which are as long as the pieces of a transaction (rules/pieces.py)."""
LARGE_PART = 2 * PART
"""Elements from which a part goes to the kernel in pieces, with small changes between these.  A part has more if it
is a single port, or if Services exchange fronts."""
MOST_CACHED = 16
"""Services that are compiled together through the cache of choices: with more, as at the start, the last Services would
evict the first."""


class Pipeline:
    """Turns events in the cluster into transactions for the kernel, for the families given.

    Attributes:
        losses: the claims that Services don't get.
        flows: the flows of UDP and SCTP, and the unanswered flows, that must be forgotten.
        health_checks: the answers of health-check node ports.
        views: the views of extensions, by the extension's name.
        withheld: by family, the Services that contribute no rules, each with the reason, "" until it is known.
            agent/sync/quarantine.py decides which Services these are.
        asked: the names of the extensions with views for which a Service or the configuration asks.
        choices: a cache of the choices for Services with many endpoints.
        known_fronts: the fronts of Services whose endpoints have changed, as they are.
        unavailable: the extensions, by name, that this node's kernel lacks at present.
        whole_tables: the tables that extensions load by themselves, by the extension's name.
        lap: a function that is called after each piece of work, with its stage.  A stopwatch can be put here.  Where
            another process has compiled and rendered a piece, the wait for it counts as rendering.

    Raises:
        TemplateError: a template fails, or an extension's is missing.
    """

    def __init__(
        self,
        node_name: str,
        settings: Settings,
        renderer: Renderer,
        families: Iterable[Family] = Family,
        each: Mapper = one_by_one,
    ) -> None:
        self.settings = settings
        self._each = each
        self.lap: Callable[[Stage], object] = lambda _: None
        self.state = ClusterState(node_name, settings.config, settings.extended())
        self.generations = {family: Generation(family) for family in families}
        self.flows = Flows(settings, self.generations)
        self._renderer = renderer
        renderer.require(name for each in settings.extensions for name in each.templates)
        whole = {each.name: each.whole_table(settings.config) for each in settings.extensions}
        self.unavailable: set[str] = set()
        self.whole_tables = {name: renderer.whole_table(part) for name, part in whole.items() if part}
        self._compiled: dict[ObjectKey, Service] = {}
        self._unfinished: dict[ObjectKey, dict[PortKey, None]] = {}
        """The owners that a Service may have beside those of the version that was compiled last."""
        self.choices = ChoiceCache()
        self.known_fronts = KnownFronts()
        self._followed = set[ObjectKey]()
        """The Services of which flows or a health check follow the endpoints."""
        self.health_checks = HealthChecks()
        families = tuple(self.generations)
        self.views = {each.name: each.view(settings, families) for each in settings.extensions if each.view}
        self.asked = {each.name for each in settings.everywhere}
        self._still_asked = self.asked
        """`asked` at the end of the change under way: a view follows a change also if nothing asks for it any more."""
        self.losses = Losses(settings, families)
        self.withheld: dict[Family, dict[ObjectKey, str]] = {family: {} for family in self.generations}
        self._updated: set[ObjectKey] = set()
        self._savepoint: Savepoint | None = None
        self._invalid = Invalidation(table=True)
        self._under_way: Invalidation | None = None
        """The parts of the change that is being made in steps."""
        self._has_more = False
        """Whether parts of this change have become invalid again meanwhile."""
        self._unsent: list[Statements] = []
        """The statements of a large change of which the kernel has only some pieces."""
        self.ingest(())

    def ingest(self, events: Iterable[Event]) -> Transaction:
        """Take events in.  Return the transaction for the kernel, for all families, empty if no rule changes."""
        return join(finish(self.ingest_in_steps(events)).values())

    def fill(self, events: Iterable[Event]) -> None:
        """Ingest the first Services, for rules that no kernel gets."""
        finish(self.ingest_in_steps(events, ()))

    def has_services(self, family: Family) -> bool:
        """Whether any Service has a block in a family's generation."""
        blocks = self.generations[family].blocks
        return len(blocks) > (SKELETON in blocks)

    def ingest_in_steps(
        self, events: Iterable[Event], families: Collection[Family] = tuple(Family), *, in_parts: bool = False
    ) -> Generator[Changes, None, Changes]:
        """As `ingest`, in pieces.  Return the transaction of each family whose rules change.

        It yields after each piece of work, so that other tasks can run.  A piece is a number of objects of a listing,
        `STEP` Services, or `PART` elements.  With `in_parts` each pause yields transactions, which the caller applies
        in their order before it goes on: a Service that changes alone changes port by port.  Otherwise only `state`
        shows the change until the end.

        At a pause the caller may ingest other events to the end (`is_compiling`).  Parts of these that concern the
        Services of this change become part of this change.

        Only `families` get transactions: a family that is about to be fully loaded needs no incremental transaction.
        If `families` is empty and there are no Services yet, the generations are filled piece by piece, perhaps by two
        processes.  This saves the memory for a change of 100,000 elements.
        """
        for _ in (steps := Steps(self.state.ingest_in_steps(events))):
            yield {}
        self._invalid.merge(steps.result)
        self.lap(Stage.STATE)
        if not families and not any(map(self.has_services, self.generations)):
            for _ in self._fill():
                yield {}
            return {}
        if self._under_way is not None and (self._has_more or self._concerns(self._under_way)):
            self._has_more = True
            return {}
        changes = yield from self._update_generations(families, in_parts=in_parts)
        while self._under_way is None and self._has_more:
            self._has_more = False
            yield changes
            changes = yield from self._update_generations(families, in_parts=in_parts)
        return changes

    @property
    def is_compiling(self) -> bool:
        """Whether `ingest_in_steps` has paused where other events may be ingested.

        A change of all Services would begin anew for each of them, perhaps for ever.
        """
        return self._under_way is not None and not self._under_way.everything

    def _concerns(self, other: Invalidation) -> bool:
        """Whether the invalid parts and a change under way may concern the same statements.

        Ports of other Services don't depend on the skeleton that is under way.  Services with other claims may get
        fronts that Services under way still have.
        """
        invalid = self._invalid
        if invalid.table or invalid.everything or other.everything or (invalid.services and other.services):
            return True
        return not (invalid.services | invalid.endpoints).isdisjoint(other.services | other.endpoints)

    def fill_in_steps(
        self, events: Iterable[Event], installed: Mapping[Family, Installed | None]
    ) -> Generator[Transaction, None, None]:
        """Ingest the first Services while no hook of ours is in force, and fill the tables piece by piece.

        It yields a transaction after each piece of work, so that the kernel can apply it while the next is made.  Some
        are empty.  The tables are idle until the last transaction, which adds the hooks.  The generations grow with the
        transactions.
        """
        for _ in (steps := Steps(self.state.ingest_in_steps(events))):
            yield Transaction()
        self._invalid.merge(steps.result)
        self.lap(Stage.STATE)
        services = self._services_of(self._invalid)
        self._put_skeletons()
        yield self._of_each(
            lambda made: unhooked_transaction(made, self._shape(made.family), installed.get(made.family))
        )
        for family, change in self._put_services(services):
            change.leave_out_base_chains()  # they come last of all
            made = change_transaction(family, change)
            self.lap(Stage.DIFF)
            yield made
        self._refresh_filled(services)
        yield self._of_each(hook_transaction)

    def _fill(self) -> Generator[None, None, None]:
        """Put the first Services into the generations."""
        services = self._services_of(self._invalid)
        self._put_skeletons()
        for _ in self._put_services(services):
            self.lap(Stage.DIFF)
            yield
        self._refresh_filled(services)

    def _refresh_filled(self, services: list[ObjectKey]) -> None:
        self._refresh_derived(services, self._invalid)
        self._invalid = Invalidation()

    def _put_skeletons(self) -> None:
        for family, generation in self.generations.items():
            generation.replace_blocks(self._table_blocks(family, self._invalid.table))

    def _put_services(self, services: Sequence[ObjectKey]) -> Iterator[tuple[Family, GenerationChange]]:
        """Put the blocks of Services into generations that have none of them yet.  Yield the change of each piece."""
        for blocks in self._each(self._blocks_of, self._pieces(services)):
            self.lap(Stage.RENDER)
            for family, generation in self.generations.items():
                yield family, generation.replace_blocks(blocks[family])

    def _pieces(self, services: Iterable[ObjectKey]) -> list[list[ObjectKey]]:
        """Cut Services into pieces of at most `STEP` Services and `STEP_ELEMENTS` elements, or a single Service."""
        pieces: list[list[ObjectKey]] = [[]]
        total = 0
        for key in services:
            size = self.state.counted_size(key)
            if pieces[-1] and (len(pieces[-1]) == STEP or total + size > STEP_ELEMENTS):
                pieces.append([])
                total = 0
            pieces[-1].append(key)
            total += size
        return pieces

    def _blocks_of(self, services: Sequence[ObjectKey]) -> dict[Family, dict[Owner, Block]]:
        blocks: dict[Family, dict[Owner, Block]] = {family: {} for family in self.generations}
        for family, found in blocks.items():
            finish(self._compile(family, services, found, None))
        return blocks

    def _of_each(self, make: Callable[[Generation], Transaction]) -> Transaction:
        """Call `make` for each generation.  Join the results to a single transaction."""
        made = join(map(make, self.generations.values()))
        self.lap(Stage.DIFF)
        return made

    def full_transaction(self, installed: Mapping[Family, Installed | None]) -> Transaction:
        """The transaction after which the kernel holds exactly the generations, given what it holds now."""
        return join(self.load(family, installed.get(family)) for family in self.generations)

    def load(self, family: Family, installed: Installed | None) -> Transaction:
        """The part of `full_transaction` for a family."""
        generation = self.generations[family]
        generation.drop_unused()
        return load_transaction(generation, self._shape(family), installed)

    def refilled(self, family: Family, installed: Installed | None) -> Generation | None:
        """The expected content of a table that a load refills in place.  None if the load replaces the table."""
        generation = self.generations[family]
        generation.drop_unused()
        return generation if installed and is_refilled(installed, self._shape(family)) else None

    def trial(self, family: Family, left_out: Collection[ObjectKey]) -> Transaction:
        """A transaction that replaces a table without the rules of some Services.  It is for a dry run only."""
        owners = {owner for key in left_out for owner in self._owners(key)}
        remaining = self.generations[family].without(owners)
        loaded = load_transaction(remaining, self._shape(family), installed=None)
        return join([delete_transaction(family), loaded])

    def contributors(self, family: Family) -> list[ObjectKey]:
        """The Services that may contribute rules to a family, in the order of their names."""
        return sorted(self._compiled.keys() - self.withheld[family].keys())

    def size_of(self, service: ObjectKey) -> int:
        """The elements that a Service contributes to all families."""
        return sum(
            len(generation.blocks[owner].lines)
            for generation in self.generations.values()
            for owner in self._owners(service)
            if owner in generation.blocks
        )

    def pop_updated(self) -> set[ObjectKey]:
        """Return the Services that were compiled again or removed since the last call."""
        updated, self._updated = self._updated, set()
        return updated

    def contributors_of(self, family: Family, line: Line) -> list[ObjectKey]:
        """The Services that contribute an element to a family.  A scan of all blocks."""
        blocks = self.generations[family].blocks.items()
        return sorted({owner.service for owner, each in blocks if isinstance(owner, PortKey) and line in each.lines})

    def withhold(self, family: Family, services: Iterable[ObjectKey], reason: str = "") -> None:
        """Exclude the rules of Services from a family from now on.  A full transaction must follow.

        With a reason they don't count as updated: a retry would be refused for the same reason.
        """
        services = list(services)
        self.withheld[family] |= dict.fromkeys(services, reason)
        self._recompile(services)
        if reason:
            self._updated.difference_update(services)

    def admit(self, family: Family, service: ObjectKey) -> Transaction:
        """Include the rules of a withheld Service again.  If the kernel refuses the transaction, call `revoke`."""
        generation = self.generations[family]
        self._savepoint = generation.savepoint(self._owners(service))
        del self.withheld[family][service]
        return self._recompile([service]).get(family, Transaction())

    def revoke(self, family: Family, service: ObjectKey, reason: str) -> None:
        """Roll back the last `admit`: withhold its Service again, for this reason."""
        assert self._savepoint is not None, "nothing was admitted"
        self.withheld[family][service] = reason
        self.generations[family].restore(self._savepoint)
        self._recompile([service])
        self._updated.discard(service)

    @property
    def quarantined(self) -> set[ObjectKey]:
        """The Services that have no rules in some family, as they exceed a limit or the kernel refuses them."""
        return self.state.excessive.keys() | set().union(*self.withheld.values())

    def _recompile(self, services: Iterable[ObjectKey]) -> dict[Family, Transaction]:
        self._invalid.services.update(services)
        return finish(self.ingest_in_steps(()))

    def _update_generations(self, families: Collection[Family], *, in_parts: bool) -> Generator[Changes, None, Changes]:
        """Update the touched parts of the generations.  If a template fails, they stay invalid."""
        before, invalid = self._under_way, self._invalid
        self._under_way, self._invalid = invalid, Invalidation()
        if invalid.services or invalid.everything:
            self.known_fronts.drop(self._services_of(invalid))
        try:
            changes = yield from self._update(invalid, families, in_parts=in_parts)
        except BaseException:
            self._invalid.merge(invalid)
            self._has_more = False
            raise
        finally:
            self._under_way = before
        if before is None and not self._has_more:
            self.asked = self._still_asked
        return changes

    def _update(
        self, invalid: Invalidation, families: Collection[Family], *, in_parts: bool
    ) -> Generator[Changes, None, Changes]:
        services = self._services_of(invalid)
        versions = {key: (self._compiled.get(key), self.state.services.get(key)) for key in services}
        skeletons = {family: self._table_blocks(family, invalid.table) for family in self.generations}
        grows = not invalid.table or self._grows(skeletons)
        is_divided = (
            in_parts and (grows or self._grows(skeletons, backwards=True)) and self._is_divisible(invalid, services)
        )
        for old, new in versions.values():
            if new is not None and new is not old:
                self._unfinished.setdefault(new.key, {}).update(dict.fromkeys(port_keys(new)))
        is_last = is_divided and not grows
        blocks: Blocks = {family: {} if is_last else each for family, each in skeletons.items()}
        if is_divided:
            yield from self._compile_in_turn(services, self._wholes(invalid, versions), blocks, families)
        elif not (yield from self._compile_at_once(services, blocks)):
            self._invalid.merge(invalid)  # and begin anew
            return {}
        if is_last:
            blocks = {family: each | skeletons[family] for family, each in blocks.items()}
        if self._unsent and self._meets_unsent(blocks):
            self._invalid.merge(invalid)
            self._has_more = True  # it comes after the change under way
            return {}
        if in_parts:
            changes = yield from self._replace_in_pieces(blocks, families)
        else:
            changes = self._replace(blocks, families)
        self._refresh_derived(self._finished(services, invalid), invalid)
        return changes

    def _finished(self, services: list[ObjectKey], invalid: Invalidation) -> list[ObjectKey]:
        """The Services of a change that needn't be compiled again.  The others stay invalid."""
        if self._has_more:
            services = [key for key in services if not self._is_invalid(key)]
            self._invalid.services |= invalid.services.difference(services)
        if self._unfinished:
            for key in services:
                self._unfinished.pop(key, None)
        return services

    def _compile_in_turn(
        self,
        services: Sequence[ObjectKey],
        wholes: Sequence[Sequence[ObjectKey]],
        blocks: Blocks,
        families: Collection[Family],
    ) -> Generator[Changes, None, None]:
        """Add the new blocks of some Services to `blocks`.  At most pauses it moves these into the generations.

        Small changes come before large changes.  The Services of each of the `wholes` change together.
        """
        apart = set[ObjectKey]().union(*wholes)
        alone = [key for key in services if key not in apart]
        for _ in self._compile_all(sorted(alone, key=self.state.counted_size), blocks):
            yield (yield from self._replace_in_pieces(blocks, families))
        for whole in sorted(wholes, key=self._counted_sizes):
            if self._counted_sizes(whole) >= PART and any(blocks.values()):
                yield (yield from self._replace_in_pieces(blocks, families))
            made: Blocks = {family: {} for family in self.generations}
            for _ in self._compile_all(whole, made):
                yield {}
            if self._has_more and any(map(self._is_invalid, whole)):
                self._invalid.services.update(whole)  # they come last
                continue
            for family, each in made.items():
                blocks[family].update(each)

    def _compile_at_once(self, services: Sequence[ObjectKey], blocks: Blocks) -> Generator[Changes, None, bool]:
        """Add the new blocks of some Services to `blocks`.  Return False if a change has concerned them meanwhile."""
        for _ in self._compile_all(services, blocks):
            yield {}
            if self._has_more:
                return False
        return True

    def _compile_all(self, services: Sequence[ObjectKey], blocks: Blocks) -> Generator[None, None, None]:
        """Add the new blocks of some Services to those of each family, with pauses."""
        cache = self.choices if len(services) <= MOST_CACHED else None
        for start in range(0, len(services), STEP):
            if start:
                yield
            for family in self.generations:
                yield from self._compile(family, services[start : start + STEP], blocks[family], cache)

    def _counted_sizes(self, services: Iterable[ObjectKey]) -> int:
        return sum(map(self.state.counted_size, services))

    def _is_invalid(self, key: ObjectKey) -> bool:
        """Whether a Service has changed while a change that concerns it is under way, and must be compiled again."""
        invalid = self._invalid
        return invalid.everything or key in invalid.services or key in invalid.endpoints

    def _is_divisible(self, invalid: Invalidation, services: Iterable[ObjectKey]) -> bool:
        """Whether the fronts that the Services of a change have in the kernel are known, and may change in turn."""
        return not invalid.everything and self._unfinished.keys().isdisjoint(services)

    def _wholes(self, invalid: Invalidation, versions: Mapping[ObjectKey, Versions]) -> list[list[ObjectKey]]:
        """Return the groups of Services that must change at once.  All other Services change port by port."""
        if not invalid.services:  # as in nearly every change
            return []
        claiming = {key: versions[key] for key in versions if key in invalid.services}
        return inseparable(self.settings, claiming, self.state.node.addresses)

    def _grows(self, skeletons: Blocks, *, backwards: bool = False) -> bool:
        """Whether the new skeletons have all that those in force have (or backwards), so that ports may change later.

        A Service that is the first to ask for a part of an extension adds it to the skeleton before its first port, and
        the last takes it away after its last port.
        """
        pairs = (
            (new[SKELETON], self.generations[family].blocks.get(SKELETON, EMPTY)) for family, new in skeletons.items()
        )
        return all(is_part(new, old) if backwards else is_part(old, new) for new, old in pairs)

    def _replace(self, blocks: Blocks, families: Collection[Family]) -> Changes:
        """Move blocks into the generations.  Return the changes of some families."""
        made = {family: change_transaction(family, each) for family, each in self._move(blocks, families).items()}
        self.lap(Stage.DIFF)
        return made

    def _replace_in_pieces(self, blocks: Blocks, families: Collection[Family]) -> Generator[Changes, None, Changes]:
        """As `_replace`, but yield a large change in pieces.

        Small changes of other Services may go between these, if they have no statement of the large change.
        """
        if any(len(each.lines) > LARGE_PART for made in blocks.values() for each in made.values()):
            yield {}
        changes = self._move(blocks, families)
        for each in blocks.values():
            each.clear()
        if any(len(each.removed) + len(each.added) > LARGE_PART for each in changes.values()):
            self._unsent = [each.statements() for each in changes.values()]
        try:
            if self._unsent:
                yield {}
            made = {family: change_transaction(family, each) for family, each in changes.items()}
            self.lap(Stage.DIFF)
            if not self._unsent:
                return made
            for family, transaction in made.items():
                yield {}
                for piece in pieces_of(transaction):
                    yield {family: piece}
            return {}
        finally:
            self._unsent = []

    def _move(self, blocks: Blocks, families: Collection[Family]) -> dict[Family, GenerationChange]:
        """Move blocks into the generations.  Return how these change, of some families."""
        changes = {
            family: generation.replace_blocks(blocks[family], keeps_unused=bool(self._unsent))
            for family, generation in self.generations.items()
        }
        return {family: each for family, each in changes.items() if each and family in families}

    def _meets_unsent(self, blocks: Blocks) -> bool:
        """Whether blocks have a statement of a large change of which the kernel has only some pieces."""
        return any(
            each.has_some_of(block) for each in self._unsent for made in blocks.values() for block in made.values()
        )

    def _services_of(self, invalid: Invalidation) -> list[ObjectKey]:
        """The Services to compile, in the order of their names."""
        if invalid.everything:
            return sorted(self.state.services.keys() | self._compiled.keys())
        return sorted(invalid.services | invalid.endpoints)

    def _refresh_derived(self, services: list[ObjectKey], invalid: Invalidation) -> None:
        """Update everything that is derived from these Services beside rules.

        These are losses, UDP flows, health checks, and the views of extensions.
        """
        claiming = [key for key in services if invalid.everything or key in invalid.services]
        for key in claiming:
            self._record_compiled(key)
            self.losses.refresh(self.state, key)
        if followed := services if claiming else [key for key in services if key in self._followed]:
            self.flows.refresh(self.state, followed)
            self.health_checks.refresh(self.state, followed, self.withheld)
        self._refresh_views(services, claiming)
        self._updated.update(services)
        self.lap(Stage.FOLLOW)

    def _refresh_views(self, services: Sequence[ObjectKey], claiming: Sequence[ObjectKey]) -> None:
        """Let the views of extensions follow a change, as far as a Service or the configuration asks for them."""
        everywhere = {each.name for each in self.settings.everywhere}
        asked = {name for name in self.views if name in everywhere or self.state.users_of(name)}
        if concerned := asked | self.asked:
            cache = self.choices if len(services) <= MOST_CACHED else None
            change = Change(self.state, services, claiming, self.withheld, self.size_of, cache)
            for name in self.views:
                if name in concerned:
                    self.views[name].refresh(change)
        self.asked, self._still_asked = concerned, asked

    def view(self, kind: type[V]) -> V:
        """The view of this kind.

        Raises:
            LookupError: its extension isn't installed.
        """
        for each in self.views.values():
            if isinstance(each, kind):
                return each
        raise LookupError(kind.__name__)

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
        self, family: Family, services: Sequence[ObjectKey], blocks: dict[Owner, Block], cache: ChoiceCache | None
    ) -> Generator[None, None, None]:
        """Add the new blocks of some Services to `blocks`, with an empty block for each port that is gone.

        It yields whenever `PART` elements more have been added or go.  A Service that has changed meanwhile stays as it
        is.
        """
        count, had = 0, self.generations[family].blocks
        for key in services:
            if self._has_more and self._is_invalid(key):
                continue
            gone = {owner: len(had[owner].lines) for owner in self._owners(key) if owner in had}
            service = self.state.services.get(key)
            if service is not None and key not in self.withheld[family]:
                known = self.known_fronts if cache else None
                for owner, facts in compile_service(
                    self.state, self.settings, family, service, cache=cache, known=known
                ):
                    self.lap(Stage.COMPILE)
                    blocks[owner] = block = self._renderer.port(facts, family.table)
                    self.lap(Stage.RENDER)
                    count += max(len(block.lines), gone.pop(owner, 0))
                    if count >= PART:
                        count = 0
                        yield
                        if self._has_more and self._is_invalid(key):
                            gone.clear()
                            break
            for owner, lines in gone.items():
                count += lines
                blocks[owner] = EMPTY
                if count >= PART:
                    count = 0
                    yield

    def _shape(self, family: Family) -> str:
        """The shape of the table, with a mark if another proxy serves the node's other Services."""
        shape = self._renderer.shape(self._table_facts(family))
        return f"{shape}{BESIDE_ANOTHER}" if self.settings.config.is_canary else shape

    def _table_facts(self, family: Family) -> TableFacts:
        return compile_table(self.state, self.settings, family)

    def _owners(self, key: ObjectKey) -> list[PortKey]:
        """The owners of the blocks that a Service has had since it was last compiled."""
        service = self._compiled.get(key)
        owners = port_keys(service) if service else []
        if key in self._unfinished:
            return list(dict.fromkeys([*owners, *self._unfinished[key]]))
        return owners

    def _record_compiled(self, key: ObjectKey) -> None:
        self.choices.evict(key)
        self._followed.discard(key)
        service = self.state.services.get(key)
        if service is None:
            self._compiled.pop(key, None)
            for withheld in self.withheld.values():
                withheld.pop(key, None)
        else:
            self._compiled[key] = service
            if service.health_check_node_port or any(port.protocol in LASTING for port in service.ports):
                self._followed.add(key)
