"""What the sets of our tables hold, read before it is known what they should hold.

A load over rules that are in force compares both.  The kernel takes a second to list the elements of a large node, in
which Python's lock is free, so the kernel is asked while the cluster is being listed, and its answers are kept as they
came until somebody compares them (comparison.py).

* They count only in the generation of the ruleset in which they were read, from the first byte to the last.  If anybody
  has committed anything since, whatever it was, the kernel is asked again.
* Nobody knows yet how much of it is ours, so no more than `MOST` is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nftproxy.kernel import nftables_netlink as nft
from nftproxy.kernel.set_elements import listings
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable

log = logging.getLogger(__name__)

MOST = 32 * 2**20
"""Bytes that are kept: 10,000 Services with ten endpoints each take 7 MiB, and what isn't kept is only read later."""


class ReadAhead:
    """Lists sets of our tables, from what has been read of them if that still holds."""

    def __init__(self) -> None:
        self._generation: int | None = None
        self._listed: dict[tuple[Family, str], bytes] = {}

    def read(self, families: Iterable[Family]) -> None:
        """Read all sets of our tables that can be compared; if that can't be done, nothing is known of them."""
        self.forget()
        try:
            generation = nft.generation()
            self._read(families)
            if nft.generation() == generation:
                self._generation = generation
        except Unavailable as error:
            log.debug("the kernel's elements can't be read ahead: %(error)s", {"error": error})
        if self._generation is None:
            self.forget()

    def _read(self, families: Iterable[Family]) -> None:
        room = MOST
        for family in families:
            for each in nft.declarations(family, TABLE):
                if not nft.is_comparable(each):
                    continue
                name, listed = nft.named_set(each).name, bytearray()
                for part in listings(family, TABLE, name):
                    room -= len(part)
                    if room < 0:
                        return
                    listed += part
                self._listed[family, name] = bytes(listed)  # in one piece, as many would leave holes in the memory

    def forget(self) -> None:
        """Keep nothing: it was compared, or will never be."""
        self._generation = None
        self._listed.clear()

    def listings(self, family: Family, table: str, name: str) -> Iterable[bytes]:
        """As `set_elements.listings`; what was read ahead is listed once."""
        if self._generation is not None and self._generation != nft.generation():
            self.forget()
        listed = self._listed.pop((family, name), None)
        return listings(family, table, name) if listed is None else [listed]
