"""The cost of packets of established flows: the bench measures arriving packets on nodes with different rules."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.namespace import LabError

from tools.bench.packet_ways import BATCH, BATCHES, Flow, Kind, Sender, Way, flows
from tools.bench.packets import Found, measure, report

needs_lab = pytest.mark.skipif(obstacle() != "", reason=obstacle())


@needs_lab
@pytest.mark.parametrize(
    "kind", [Kind(), Kind(is_ipv6=True, is_tcp=True, services=2, interfaces=2)], ids=["UDP", "TCP"]
)
def test_each_flow_is_measured(kind: Kind) -> None:
    """Each flow is established through its rules, has a burst for each turn, and loses no packet."""
    given = list(flows(kind))
    found = measure(given, turns=2)
    assert [(each.name, len(each.bursts)) for each in found] == [(flow.name, 2) for flow in given]
    assert all(burst > 0 for each in found for burst in each.bursts)


@needs_lab
def test_lost_packets_are_no_measurement() -> None:
    """If rules drop packets of the flow, there is an error instead of a time."""
    rule = "type filter hook forward priority 0; limit rate over 5/hour burst 5 packets drop;"
    limited = f"table ip t {{ chain c {{ {rule} }}; }}"
    with pytest.raises(LabError, match=rf"^limited: of {BATCH * BATCHES} packets \d+ arrived$"):
        measure([Flow("limited", limited, Kind().direct)], turns=1)


@needs_lab
def test_a_forgotten_flow_is_no_measurement() -> None:
    """If connection tracking forgets a flow, its next packets are those of another flow, which is an error."""
    with Way(list(flows(Kind()))[1]) as way:
        way.check()
        way.node.flush_conntrack()
        Sender().burst(way)
        with pytest.raises(LabError, match="the kernel has forgotten the flow"):
            way.check()


def test_the_table_says_what_is_above_no_table() -> None:
    """Each row has the range of the fastest bursts, and the difference from the first row."""
    rows = list(report([Found("none", [1000.0] * 40), Found("ours", [1500.0] * 40)]))
    assert rows[2:] == [
        "| none | 1,000,000 | 1.00 us | 0.00 us | 1.00 to 1.00 us |",
        "| ours | 666,667 | 1.50 us | 0.50 us | 1.50 to 1.50 us |",
    ]
