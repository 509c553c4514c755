"""Pods by name and by address, from manifests, for questions and answers that name pods.

No rule depends on pods: a proxy reads endpoints, and no Pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from nftproxy.model.addresses import Address
from nftproxy.model.objects import ObjectKey


class Pods(NamedTuple):
    """The addresses of pods by their names, and the names by address.

    An address of several pods, such as that of the host's network, has no name.
    """

    addresses: Mapping[ObjectKey, tuple[Address, ...]] = MappingProxyType({})
    names: Mapping[Address, ObjectKey] = MappingProxyType({})

    def name_at(self, address: Address) -> str:
        """Return the name of the pod with an address, "" if unknown."""
        return str(self.names.get(address, ""))

    @classmethod
    def of(cls, known: Iterable[tuple[ObjectKey, Address]]) -> Self:
        """Collect pairs of names and addresses.  Several addresses of a pod stay in their order."""
        addresses: dict[ObjectKey, dict[Address, None]] = {}
        holders: dict[Address, set[ObjectKey]] = {}
        for key, address in known:
            addresses.setdefault(key, {})[address] = None
            holders.setdefault(address, set()).add(key)
        names = {address: next(iter(keys)) for address, keys in holders.items() if len(keys) == 1}
        return cls({key: tuple(each) for key, each in addresses.items()}, names)


NO_PODS = Pods()
