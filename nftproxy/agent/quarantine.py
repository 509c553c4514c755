"""Which of many things together are refused: a search by halves, asked and answered step by step.

The kernel refuses a transaction as a whole, and what it says doesn't always name an element, let alone whose it is.  So
what is in question is left out, and let back in by halves: whatever is taken stays in, whatever is refused is halved
again, until one thing alone is refused.  For each that is found in n, at most 2 log2 n questions.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable, Sequence
from typing import TypeVar

Suspect = TypeVar("Suspect", bound=Hashable)


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
