"""Large changes and large refills in pieces, in a real kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.node import Node

from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.pipeline import Pipeline
from nftproxy.rules import ruleset
from nftproxy.rules.pieces import DECLARATIONS, pieces_of, split_refill
from tests.rules.test_pieces import gone, history, timeouts
from tests.support.factories import pipeline

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

SIZE = 4_000
"""Characters of a piece here, some 100 elements."""
STATES = [1, 4, 5, 9, 11, 13]
"""Lengths of histories: growth, another algorithm, another family of lists, fewer ports, and no Service."""


@pytest.fixture
def node() -> Iterator[Node]:
    """A scratch node."""
    with Node("node") as made:
        yield made


def assert_held(node: Node, kernel: Kernel, agent: Pipeline) -> None:
    """Assert that the kernel holds exactly the elements of the generations."""
    for family, generation in agent.generations.items():
        found = node.call(kernel.read_back, family)
        assert found is not None
        compared = node.call(kernel.compare, found, generation).differences
        assert {each.container for each in generation.elements()} <= compared.keys()
        assert {name for name, each in compared.items() if each.surplus or each.missing} == set()


def test_the_kernel_takes_a_change_in_pieces(node: Node) -> None:
    """The kernel takes every piece of every change, and holds the generations after the last."""
    kernel, agent = Kernel(), pipeline(wide_maps=probe().capabilities.wide_maps)
    node.call(kernel.apply, agent.full_transaction({}))
    for events in history():
        change = agent.ingest(events)
        for piece in pieces_of(change, max(SIZE, len(change.text) // 10)):
            node.call(kernel.apply, piece)
    assert_held(node, kernel, agent)


def test_the_kernel_takes_declarations_in_pieces(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes every piece of many new maps and chains, and every piece of their end."""
    monkeypatch.setattr(ruleset, "MAX_UNUSED", 0)
    kernel, agent = Kernel(), pipeline(wide_maps=probe().capabilities.wide_maps)
    node.call(kernel.apply, agent.full_transaction({}))
    for events in (timeouts(200), gone(200)):
        pieces = pieces_of(agent.ingest(events), SIZE // DECLARATIONS)
        assert sum("flush chain " in each.text for each in pieces) > 3
        for piece in pieces:
            node.call(kernel.apply, piece)
        assert_held(node, kernel, agent)


def test_the_kernel_takes_a_refill_in_pieces(node: Node) -> None:
    """A restart over other rules sends differences in pieces around the load, and the kernel takes all of them."""
    kernel, first = Kernel(), pipeline(wide_maps=probe().capabilities.wide_maps)
    node.call(kernel.apply, first.full_transaction({}))
    count = 0
    for length in STATES:
        agent = pipeline(wide_maps=probe().capabilities.wide_maps)
        agent.ingest([event for events in history()[:length] for event in events])
        for family in agent.generations:
            found = node.call(kernel.read_back, family)
            assert found is not None
            generation = agent.refilled(family, found)
            assert generation is not None
            split = split_refill(family, node.call(kernel.compare, found, generation), SIZE)
            pieces = [*split.early, agent.load(family, split.installed), *split.late]
            for piece in pieces:
                node.call(kernel.apply, piece)
            count += len(split.early) + len(split.late)
        assert_held(node, kernel, agent)
    assert count > 5 * len(STATES)
