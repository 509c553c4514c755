"""Removes nftproxy's tables, for `nftproxy cleanup` and `nftproxy run --cleanup`."""

from __future__ import annotations

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink.nft_queries import inet_table_comment
from nftproxy.model.addresses import Family
from nftproxy.rules.transaction import delete_own_table, delete_transaction, join


def remove_tables() -> None:
    """Remove all of nftproxy's tables.

    Raises:
        Refused, Unavailable: as the kernel does.
    """
    from nftproxy.installed import OWN_TABLES  # `run` imports the rest late

    Kernel().apply(join(map(delete_transaction, Family)))
    for table in OWN_TABLES:
        if inet_table_comment(table) is not None:
            Kernel().apply(delete_own_table(table))
