"""Pods by name and by address, as far as manifests say: to understand people's questions, and to answer in their words.

No rule depends on it: a proxy knows endpoints, and doesn't follow pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from nftproxy.model.addresses import Address
from nftproxy.model.objects import ObjectKey


class Pods(NamedTuple):
    """Pods' addresses by their names, and their names by address.

    An address that several pods have, as those in the host's network do, has no name.
    """

    addresses: Mapping[ObjectKey, tuple[Address, ...]] = MappingProxyType({})
    names: Mapping[Address, ObjectKey] = MappingProxyType({})

    def name_at(self, address: Address) -> str:
        """The name of the pod that has an address, "" if that isn't known."""
        return str(self.names.get(address, ""))

    @classmethod
    def of(cls, known: Iterable[tuple[ObjectKey, Address]]) -> Self:
        """Those of which a name and an address are known; several addresses stay in their order."""
        addresses: dict[ObjectKey, dict[Address, None]] = {}
        holders: dict[Address, set[ObjectKey]] = {}
        for key, address in known:
            addresses.setdefault(key, {})[address] = None
            holders.setdefault(address, set()).add(key)
        names = {address: next(iter(keys)) for address, keys in holders.items() if len(keys) == 1}
        return cls({key: tuple(each) for key, each in addresses.items()}, names)


NO_PODS = Pods()
