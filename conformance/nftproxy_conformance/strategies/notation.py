"""Keys, addresses and networks from the texts that people write."""

from __future__ import annotations

from collections.abc import Iterable

from nftproxy.model.addresses import Address, Network, parse_address, parse_network
from nftproxy.model.objects import ObjectKey


def key(text: str) -> ObjectKey:
    """An object's key from "namespace/name"."""
    namespace, _, name = text.partition("/")
    return ObjectKey(namespace, name)


def addresses(texts: Iterable[str]) -> tuple[Address, ...]:
    """Addresses from their texts."""
    return tuple(map(parse_address, texts))


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks from their texts."""
    return tuple(map(parse_network, texts))
