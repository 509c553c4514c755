"""Removes nftproxy's tables, for `nftproxy cleanup` and `nftproxy run --cleanup`."""

from __future__ import annotations

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink.nft_queries import fast_path_comment
from nftproxy.model.addresses import Family
from nftproxy.rules.transaction import delete_fast_path, delete_transaction, join


def remove_tables() -> None:
    """Remove all of nftproxy's tables.

    Raises:
        Refused, Unavailable: as the kernel does.
    """
    Kernel().apply(join(map(delete_transaction, Family)))
    if fast_path_comment() is not None:
        Kernel().apply(delete_fast_path())
