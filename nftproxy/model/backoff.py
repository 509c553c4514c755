"""Backoff: the pauses before retries, by tenacity's strategy.

A function that is called until it succeeds is retried by tenacity itself.  State machines and listeners count their
failures, and ask here for the pause.
"""

from __future__ import annotations

from tenacity import RetryCallState, Retrying, wait_exponential

_RETRYING = Retrying()
"""A call's state must belong to a retry, though strategies don't use it."""


class Backoff:
    """Pauses in seconds: `first` after a failure, doubled after each further failure in a row, at most `longest`."""

    def __init__(self, first: float, longest: float) -> None:
        self.first = first
        self.longest = longest
        self._wait = wait_exponential(multiplier=first, max=longest)

    def pause(self, failures: int) -> float:
        """Return the seconds before the next retry, after a number of failures in a row that is 1 or more."""
        state = RetryCallState(_RETRYING, None, (), {})
        state.attempt_number = failures
        return self._wait(state)
