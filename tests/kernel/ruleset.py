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


def held() -> Held:
    """Return all elements of our tables, as the kernel's bytes, sorted."""
    return {
        (family, each.name): sorted(item for part in items(family, each.name) for item in part)
        for family in Family
        for each in nft_queries.sets(family)
    }
