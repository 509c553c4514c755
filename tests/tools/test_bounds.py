"""The tool that measures the cost of objects at a bound measures as documented."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import obstacle

from tools.bench import fairness
from tools.bench.bounds import CASES, Case, fronts, measure, ranges, rows, run

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


def test_what_is_within_bounds_gets_into_the_kernel() -> None:
    """A small Service of each kind gets its elements, and is not quarantined."""
    costs = [measure(objects) for objects in (fronts(3, 4), rows(2, 5), ranges(2, 3))]
    assert [cost.reason for cost in costs] == ["", "", ""]
    assert [cost.elements > 10 for cost in costs] == [True, True, True]


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
def test_a_hundred_times_a_bound_gets_nothing(case: Case) -> None:
    """An object a hundred times as large as a bound is quarantined, and no element of it gets into the kernel."""
    cost = measure(case.hundred_times())
    assert "are allowed" in cost.reason
    assert cost.elements == 0


@pytest.mark.parametrize(("count", "stay"), [(10, 10), (300, 127)])
def test_silent_connections_stay_up_to_the_bound(count: int, stay: int) -> None:
    """Silent connections stay open up to the port's bound, less the connection of a probe."""
    assert run("--crowd", str(count)).decode().startswith(f"| {count} | {stay} | ")


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
