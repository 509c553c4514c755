"""The word for least connections in the annotation `algorithm`, which other extensions declare too."""

from __future__ import annotations

from nftproxy.model.addresses import Protocol
from nftproxy.model.annotations import Option, Word
from nftproxy.model.keys import KeyEnum
from nftproxy.model.objects import Service


class Balancing(KeyEnum):
    """Whether the number of connections decides how an endpoint is chosen for a new connection."""

    RANDOM = "random"
    LEAST_CONNECTIONS = "least-connections"


WORD = Balancing.LEAST_CONNECTIONS
"""The value of the annotation that asks for this."""

BALANCING: Option[Balancing] = Option(
    "algorithm",
    Word(Balancing),
    Balancing.RANDOM,
    "says how an endpoint is [chosen](#algorithms) for a new connection",
    ("services",),
)


def is_asked_for(service: Service) -> bool:
    """Whether a Service asks for least connections."""
    return service.options[BALANCING] is WORD


def is_asked_of(service: Service, protocol: Protocol) -> bool:
    """Whether least connections holds for a port of this protocol.

    Only TCP has connections to count: of UDP and SCTP, connection tracking knows packets that came lately.
    """
    return is_asked_for(service) and protocol is Protocol.TCP
