"""The reasons for which a packet to a front of a Service gets no endpoint (the verdicts: `Endings`)."""

from __future__ import annotations

from enum import Enum


class UnservedReason(Enum):
    """Why no endpoint got a packet.  The value is in the name of the set that counts it."""

    NO_ENDPOINT = "no-endpoint"
    NONE_LOCAL = "none-local"
    NOT_ADMITTED = "not-admitted"
    RACE = "race"
    DENIED = "denied"
    OVER_RATE = "over-rate"
    OVER_CONNECTIONS = "over-connections"


RESTRICTED = frozenset({UnservedReason.DENIED, UnservedReason.OVER_RATE, UnservedReason.OVER_CONNECTIONS})
"""The reasons that only annotations give.  A Service with such an annotation has its packets counted in any case."""
