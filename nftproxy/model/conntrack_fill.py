"""The fill of connection tracking from which the agent warns."""

FULL = 0.75
"""The share of the limit above which a burst could need the rest."""


def nearly_full(entries: int, limit: int) -> str:
    """Return how full connection tracking is, or "" up to `FULL`."""
    return f"{entries} entries of {limit}, {100 * entries // max(limit, 1)} %" if entries > FULL * limit else ""
