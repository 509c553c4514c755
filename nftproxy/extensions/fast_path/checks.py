"""The check of `doctor` for the fast path."""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy.doctor.findings import Finding, note
from nftproxy.doctor.observations import Observations
from nftproxy.extensions.fast_path.codes import FastPathCode
from nftproxy.extensions.fast_path.rules import FAST_PATH_TABLE
from nftproxy.model.addresses import TABLE


def passed_by(observed: Observations) -> Iterator[Finding]:
    """Find the chains of other programs that packets on our fast path don't pass, and other programs' flowtables."""
    ours = f"inet {FAST_PATH_TABLE}"
    if ours not in observed.nft_tables:
        return
    chains = [
        f"the chain {each.name} in the table {each.family} {each.table} ({each.hook})"
        for each in observed.base_chains
        if each.hook in ("prerouting", "forward", "postrouting") or (each.hook == "ingress" and each.priority >= 0)
        if each.table not in (TABLE, FAST_PATH_TABLE)
    ]
    flowtables = [f"the flowtable {each}" for each in observed.flowtables if each.rpartition(" ")[0] != ours]
    if chains or flowtables:
        yield note(FastPathCode.FAST_PATH_PASSES_BY, *chains, *flowtables)
