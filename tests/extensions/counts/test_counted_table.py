"""The outcomes that a table counts."""

from __future__ import annotations

import pytest

from nftproxy.extensions.counts.feature import CountedTable
from tests.policy.compile.membership import compiled


@pytest.mark.parametrize(
    ("counts", "counted"), [(True, ("connections", "no-endpoint", "none-local", "not-admitted", "race")), (False, ())]
)
def test_a_table_with_service_counts_counts_all_outcomes(counts: bool, counted: tuple[str, ...]) -> None:
    """With serviceCounts a table counts everything but annotations, whose counters come with their Services.

    Without it, nothing.
    """
    found = [
        each.facts.counted for each in compiled(service_counts=counts).parts if isinstance(each.facts, CountedTable)
    ]
    assert found == ([counted] if counted else [])
