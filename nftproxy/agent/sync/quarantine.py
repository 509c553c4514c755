"""Quarantine: finds the Services whose rules the kernel refuses, keeps them out, and retries them.

The kernel refuses a transaction as a whole, and its error doesn't always name an element, let alone the element's
Service.  So the suspects are left out, and let back in by bisection: a half that the kernel accepts stays in, and a
half that it refuses is halved again, down to a single Service.  Each culprit among n suspects costs at most 2 log2 n
trials.

If the error does name an element, its Service is tried first, alone in an empty table.  The kernel answers that in the
same time however many Services there are, but the trial is made by a look at all of them.

A quarantined Service contributes no rules to that family.  Its rules of the other family, and all other Services, are
not affected.  It is retried when it changes, and at each periodic check.

This module does no I/O: its generators yield the transactions to try, and are sent the kernel's verdicts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Hashable, Sequence, Set
from typing import TypeVar

from nftproxy.model.addresses import Family
from nftproxy.model.objects import ObjectKey
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Transaction

Suspect = TypeVar("Suspect", bound=Hashable)

_ELEMENT = re.compile(r"(?:add|create|delete) element (?P<table>\S+ \S+) (?P<container>\S+) \{ (?P<text>.+) \}")
"""A command about a single element, as an error has it.  A longer command is cut off, and doesn't match."""

MOST_RETRIED = 20
"""Limit of quarantined Services that a periodic check retries."""


def find_culprits(suspects: Sequence[Suspect]) -> Generator[Collection[Suspect], bool, list[Suspect]]:
    """Find the suspects that must be left out so that the kernel accepts the rest, by bisection.

    The kernel must accept the rules without any suspect, and refuse them with all.  Of two suspects that conflict, the
    later is found.

    Yields:
        The suspects to leave out in the next trial.  Send True if the kernel accepted the rest.

    Returns:
        The suspects that the kernel refuses beside the accepted suspects.
    """
    left_out = set(suspects)
    found: list[Suspect] = []

    def let_in(group: Sequence[Suspect], *, is_refused: bool = False) -> Generator[Collection[Suspect], bool, bool]:
        """Let in every acceptable suspect of a group.  Return whether that was the whole group."""
        if not is_refused:
            is_taken = yield left_out.difference(group)
            if is_taken:
                left_out.difference_update(group)
                return True
        if len(group) == 1:
            found.append(group[0])
            return False
        half = len(group) // 2
        is_first_in = yield from let_in(group[:half])
        yield from let_in(group[half:], is_refused=is_first_in)
        return False

    if suspects:
        yield from let_in(suspects, is_refused=True)
    return found


class Quarantine:
    """The Services that are quarantined in a family."""

    def __init__(self, pipeline: Pipeline, family: Family) -> None:
        self.family = family
        self._pipeline = pipeline
        self.unproven: set[ObjectKey] = set()
        """Services that have changed since the kernel last held all rules, as far as they were passed on."""

    @property
    def reasons(self) -> dict[ObjectKey, str]:
        """The quarantined Services, each with the kernel's error for its rules alone ("": not known yet)."""
        return self._pipeline.withheld[self.family]

    def record_updates(self, updated: Set[ObjectKey]) -> None:
        """Note Services that have changed or gone since the kernel last held all rules (`Pipeline.pop_updated`)."""
        present = updated & self._pipeline.state.services.keys()
        self.unproven = self.unproven - updated | present

    def accepted(self) -> list[ObjectKey]:
        """Note that the kernel holds all rules.  Return the quarantined Services that have changed, to be retried."""
        unproven, self.unproven = self.unproven, set()
        return sorted(unproven & self.reasons.keys()) if self.reasons else []

    def named(self, statement: str) -> ObjectKey | None:
        """Return the Service of the element that a refused statement is about.

        None if the statement is about something else, or if several Services share the element.
        """
        found = _ELEMENT.fullmatch(statement)
        if not found or found["table"] != self.family.table:
            return None
        services = self._pipeline.contributors_of(self.family, f"{found['container']} {found['text']}")
        return services[0] if len(services) == 1 else None

    def alone(self, service: ObjectKey) -> Transaction:
        """Return a transaction for a dry run: a table with the rules of a single Service."""
        others = (each for each in self._pipeline.contributors(self.family) if each != service)
        return self._pipeline.trial(self.family, list(others))

    def withhold(self, service: ObjectKey, refusal: str) -> None:
        """Quarantine a Service whose rules the kernel refuses alone.  A full load must follow."""
        self._pipeline.withhold(self.family, [service], refusal)
        self.unproven.discard(service)

    def search(self) -> Generator[Transaction, bool, list[ObjectKey]]:
        """Find the Services whose rules the kernel refuses, and quarantine them.  A full load must follow.

        The kernel must accept the rules without any Service.

        Yields:
            A transaction to check.  Send True if the kernel would accept it.

        Returns:
            The Services that were found.
        """
        if (yield self._pipeline.trial(self.family, ())):
            return []
        everyone = self._pipeline.contributors(self.family)
        changed = [service for service in everyone if service in self.unproven]
        suspects = changed if (yield self._pipeline.trial(self.family, changed)) else everyone
        found = yield from self._with_trials(find_culprits(suspects))
        self._pipeline.withhold(self.family, found)
        return found

    def _with_trials(
        self, search: Generator[Collection[ObjectKey], bool, list[ObjectKey]]
    ) -> Generator[Transaction, bool, list[ObjectKey]]:
        """Run a search among Services, with its trials as transactions."""
        try:
            left_out = next(search)
            while True:
                is_taken = yield self._pipeline.trial(self.family, left_out)
                left_out = search.send(is_taken)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # a StopIteration's value has no type

    def retry(self, service: ObjectKey) -> Transaction:
        """Let a Service in again, and return the transaction.  If the kernel refuses it, call `keep` next."""
        return self._pipeline.admit(self.family, service)

    def keep(self, service: ObjectKey, refusal: str) -> None:
        """Quarantine again the Service that was retried last, with the kernel's error."""
        self._pipeline.revoke(self.family, service, refusal)
