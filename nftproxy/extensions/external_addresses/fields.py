"""The configuration of closed ports and answered pings."""

from __future__ import annotations

from enum import Enum

from nftproxy.model.annotations import Word
from nftproxy.model.config_fields import ConfigField
from nftproxy.model.settings import Config


class ExternalAddresses(Enum):
    """What becomes of packets to an external address at a port that no Service has (nftproxy.externalAddresses)."""

    OPEN = "open"
    CLOSED = "closed"


class Ping(Enum):
    """What becomes of pings (ICMP echo requests) to addresses of Services (nftproxy.ping)."""

    REJECT = "reject"
    ANSWER = "answer"


EXTERNAL_ADDRESSES = ConfigField(
    "externalAddresses",
    Word(ExternalAddresses),
    ExternalAddresses.OPEN,
    "closed: rejects packets to ports without a Service.",
    needs=("externalIPCIDRs", "ranges that nothing but Services uses"),
)
"""In `external_ip_cidrs`, of external addresses of both kinds.  Ranges must say which addresses are Services' alone:
authors of Services can claim any other."""
PINGS = ConfigField("ping", Word(Ping), Ping.REJECT, "answer: Services with a usable endpoint answer pings.")
"""At ClusterIPs, and at external addresses in `external_ip_cidrs`."""


def closes_external_addresses(config: Config) -> bool:
    """Whether ports without a Service are closed at external addresses."""
    return config[EXTERNAL_ADDRESSES] is ExternalAddresses.CLOSED


def answers_pings(config: Config) -> bool:
    """Whether Services' addresses answer pings."""
    return config[PINGS] is Ping.ANSWER


def is_asked_for(config: Config) -> bool:
    """Whether the configuration asks for closed ports or for answers to pings."""
    return closes_external_addresses(config) or answers_pings(config)
