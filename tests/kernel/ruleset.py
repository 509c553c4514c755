"""The kernel's nftables in a test's namespace: changed as another program would, and read back byte by byte."""

from __future__ import annotations

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.nfnetlink.elements import items
from nftproxy.model.addresses import Family
from nftproxy.rules.transaction import Commit, Transaction

Held = dict[tuple[Family, str], list[bytes]]


def execute(*commands: str) -> Commit:
    """Have the kernel execute commands as a transaction."""
    return Kernel().apply(Transaction("".join(f"{command.strip()}\n" for command in commands)))


def listing(family: Family = Family.IPV4) -> str:
    """Our table as nft prints it."""
    return Kernel().listing(family)


_INTERVAL_END = bytes.fromhex("0800030000000001")
"""The attribute NFTA_SET_ELEM_FLAGS with NFT_SET_ELEM_INTERVAL_END (linux/netfilter/nf_tables.h)."""


def held() -> Held:
    """Return all elements of our tables, as the kernel's bytes, sorted.

    The end of an interval at the first address is left out: it ends nothing.  nft 1.0.9 adds it to a set that was
    flushed.
    """
    return {
        (family, each.name): sorted(
            item for part in items(family, each.name) for item in part if not _ends_nothing(item)
        )
        for family in Family
        for each in nft_queries.sets(family)
    }


def _ends_nothing(item: bytes) -> bool:
    header = 8  # of NFTA_SET_ELEM_KEY, and of its NFTA_DATA_VALUE
    return item.endswith(_INTERVAL_END) and not any(item[header : -len(_INTERVAL_END)])
