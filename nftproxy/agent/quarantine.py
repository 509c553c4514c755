"""Quarantine: finds the Services whose rules the kernel refuses, keeps them out, and retries them.

The kernel refuses a transaction as a whole, and what it says doesn't always name an element, let alone whose it is.  So
the Services in question are left out, and let back in by halves: a half that the kernel takes stays in, one that it
refuses is halved again, down to one Service.  For each that is found among n, at most 2 log2 n questions.

A quarantined Service contributes no rules to that family; its rules of the other family, and all other Services,
are not affected.  It is retried when it changes, and at each periodic check.

Nothing here asks the kernel: generators yield what is to be asked or applied, and are sent the answers.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable, Sequence
from typing import TypeVar

from nftproxy.model.addresses import Family
from nftproxy.model.objects import ObjectKey
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Transaction

Suspect = TypeVar("Suspect", bound=Hashable)

MOST_RETRIED = 20
"""Quarantined Services that one periodic check retries."""


def find_culprits(suspects: Sequence[Suspect]) -> Generator[Collection[Suspect], bool, list[Suspect]]:
    """Find those that must be left out so that all others are taken.

    Without any of the suspects the rest must be taken, and with all of them refused.  Of two that don't go together the
    later one is found.

    Yields:
        What to leave out in the next trial.  To be sent is whether the rest was taken.

    Returns:
        Those that were refused although only what had been taken before was with them.
    """
    left_out = set(suspects)
    found: list[Suspect] = []

    def let_in(group: Sequence[Suspect], *, is_refused: bool = False) -> Generator[Collection[Suspect], bool, bool]:
        """Let in what can be let in of a group; whether that was all.  It may be known that all of it is refused."""
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
    """The Services that are quarantined in one family."""

    def __init__(self, pipeline: Pipeline, family: Family) -> None:
        self.family = family
        self._pipeline = pipeline
        self._unproven: set[ObjectKey] = set()

    @property
    def reasons(self) -> dict[ObjectKey, str]:
        """The quarantined Services, each with the kernel's answer to its rules alone ("": not yet asked)."""
        return self._pipeline.withheld[self.family]

    def note(self, updated: Collection[ObjectKey]) -> None:
        """These Services have changed, or gone, since the kernel last held all rules (`Pipeline.take_updated`)."""
        services = self._pipeline.state.services
        self._unproven -= set(updated)
        self._unproven |= {key for key in updated if key in services}

    def accepted(self) -> list[ObjectKey]:
        """Take note that the kernel holds all rules; returns quarantined Services that have changed, to retry them."""
        changed = sorted(self._unproven & self.reasons.keys())
        self._unproven.clear()
        return changed

    def search(self) -> Generator[Transaction, bool, list[ObjectKey]]:
        """Find the Services whose rules the kernel refuses, and quarantine them; a load of everything must follow.

        The kernel must take the rules without any Service.

        Yields:
            A transaction to check.  To be sent is whether the kernel would take it.

        Returns:
            Who was found.

        """
        if (yield self._pipeline.trial(self.family, ())):
            return []
        everyone = self._pipeline.contributors(self.family)
        changed = [service for service in everyone if service in self._unproven]
        suspects = changed if (yield self._pipeline.trial(self.family, changed)) else everyone
        found = yield from self._asking(find_culprits(suspects))
        self._pipeline.withhold(self.family, found)
        return found

    def _asking(
        self, search: Generator[Collection[ObjectKey], bool, list[ObjectKey]]
    ) -> Generator[Transaction, bool, list[ObjectKey]]:
        """A search among Services, its questions as transactions."""
        try:
            left_out = next(search)
            while True:
                is_taken = yield self._pipeline.trial(self.family, left_out)
                left_out = search.send(is_taken)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # a StopIteration's value has no type

    def retry(self, service: ObjectKey) -> Transaction:
        """Let a Service in again: the transaction to apply.  If the kernel refuses it, `keep` must be called next."""
        return self._pipeline.admit(self.family, service)

    def keep(self, service: ObjectKey, refusal: str) -> None:
        """Keep the Service quarantined that was retried last, as the kernel has refused it again."""
        self._pipeline.take_back(self.family, service, refusal)
