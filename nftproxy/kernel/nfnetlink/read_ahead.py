"""The elements of our tables' sets, read before the generation to compare them with is known.

A load over rules that are in force compares both.  The kernel takes a second to list the elements of a large node, in
which Python's lock is free.  So the kernel is asked while the cluster is being listed, and its answers are kept as they
are until the comparison (comparison.py).

* They are valid only in the generation of the ruleset in which they were read, from the first byte to the last. After
  any commit meanwhile the kernel is asked again.
* How many elements are foreign is still unknown, so at most `MOST` bytes are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.nfnetlink.elements import listings
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.netlink.codec import text_of
from nftproxy.netlink.nf_tables import SET_NAME

log = logging.getLogger(__name__)

MOST = 32 * 2**20
"""Bytes that are kept: 10,000 Services with ten endpoints each take 7 MiB.  The rest is read later."""


class ReadAhead:
    """Lists sets of our tables, from its cache if that is still valid."""

    def __init__(self) -> None:
        self._generation: int | None = None
        self._listed: dict[tuple[Family, str], bytes] = {}

    def read(self, families: Iterable[Family]) -> None:
        """Read all comparable sets of our tables into the cache.  After a failure the cache is empty."""
        self.clear()
        try:
            generation = nft_queries.generation()
            self._read(families)
            if nft_queries.generation() == generation:
                self._generation = generation
        except Unavailable as error:
            log.debug("the kernel's elements can't be read ahead: %(error)s", {"error": error})
        if self._generation is None:
            self.clear()

    def _read(self, families: Iterable[Family]) -> None:
        room = MOST
        for family in families:
            for each in nft_queries.comparable_sets(family):
                name, listed = text_of(each[SET_NAME]), bytearray()
                for part in listings(family, name):
                    room -= len(part)
                    if room < 0:
                        return
                    listed += part
                self._listed[family, name] = bytes(listed)  # in one piece, as many pieces would fragment the memory

    def clear(self) -> None:
        """Empty the cache, after the comparison or if there will be none."""
        self._generation = None
        self._listed.clear()

    def listings(self, family: Family, name: str) -> Iterable[bytes]:
        """List sets as `elements.listings` does.  A cached set is listed once."""
        if self._generation is not None and self._generation != nft_queries.generation():
            self.clear()
        listed = self._listed.pop((family, name), None)
        return listings(family, name) if listed is None else [listed]
