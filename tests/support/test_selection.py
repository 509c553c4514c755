"""The rows of a long table that the default run tries."""

from __future__ import annotations

import pytest

SUITE = """
    import pytest
    from tests.support.selection import mark_repetitions

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(items):
        mark_repetitions(items)
"""
TESTS = """
    import pytest

    @pytest.fixture(params=["ip", "ip6"])
    def family(request):
        return request.param

    @pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
    def test_two(family, protocol): pass

    @pytest.mark.parametrize("policy", ["Cluster", "Local"])
    @pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
    def test_three(family, protocol, policy): pass

    @pytest.mark.parametrize(("text", "number"), [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("c", 2)])
    def test_a_table(text, number): pass

    @pytest.mark.parametrize("policy", ["Cluster", "Local"])
    def test_few(family, policy): pass
"""

pytest_plugins = ["pytester"]


def selected(pytester: pytest.Pytester, test: str, *options: str) -> list[str]:
    """The rows of a test that pytest collects."""
    pytester.makeconftest(SUITE)
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nmarkers = slow")
    lines = pytester.runpytest_inprocess("--collect-only", "-q", *options).outlines
    return [line.partition("[")[2].rstrip("]") for line in lines if f"::{test}[" in line]


def test_two_parameters_have_each_value(pytester: pytest.Pytester) -> None:
    """Of a product of two parameters each value is tried, and the slow suite tries the other rows."""
    assert selected(pytester, "test_two", "-m", "not slow") == ["ip-tcp", "ip-sctp", "ip6-udp"]
    assert selected(pytester, "test_two", "-m", "slow") == ["ip-udp", "ip6-tcp", "ip6-sctp"]


def test_three_parameters_have_each_pair(pytester: pytest.Pytester) -> None:
    """Of a product of three parameters each pair of values is tried."""
    rows = selected(pytester, "test_three", "-m", "not slow")
    values = [row.split("-") for row in rows]
    assert len(rows) == 6
    assert {(family, protocol) for family, protocol, _ in values} == {
        (family, protocol) for family in ("ip", "ip6") for protocol in ("tcp", "udp", "sctp")
    }
    assert len({(family, policy) for family, _, policy in values}) == 4
    assert len({(protocol, policy) for _, protocol, policy in values}) == 6


@pytest.mark.parametrize(("test", "rows"), [("test_a_table", 6), ("test_few", 4)])
def test_other_tables_are_whole(pytester: pytest.Pytester, test: str, rows: int) -> None:
    """The rows of a single table, and of a small product, are all tried."""
    assert len(selected(pytester, test, "-m", "not slow")) == rows
