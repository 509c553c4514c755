"""The tenants of the bench of fairness ask for what is allowed."""

from __future__ import annotations

import pytest

from tools.bench import fairness

ELEMENTS = {"ports": 202_000, "maglev": 82_101, "weights": 46_463, "udp": 3_101, "small-1": 435}
"""The most elements of two changes of a tenant."""


@pytest.mark.parametrize("row", ELEMENTS)
def test_what_a_tenant_rewrites_is_allowed(row: str) -> None:
    """Each change of the tenant is within the limits, and changes as many elements as the row says."""
    (case,) = fairness.CASES[row]
    made = fairness.cluster(*case.start())
    numbers = (5, 6) if row == "small-1" else (1, 2)
    assert max(made.ingest(fairness.events(case.change(each))).size().elements for each in numbers) == ELEMENTS[row]
    assert made.quarantined == set()
