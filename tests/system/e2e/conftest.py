"""The world that all end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import obstacle

from tests.system.e2e.agent import World


@pytest.fixture(scope="session")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A node with its agent for all tests, which are skipped where there can be no lab."""
    if why := obstacle():
        pytest.skip(why)
    with World(tmp_path_factory.mktemp("node-a")) as world:
        yield world
        world.agent.check_log()


@pytest.fixture
def world(shared_world: World) -> World:
    """A node with its agent, in a cluster without Services."""
    shared_world.clear()
    return shared_world


@pytest.fixture(scope="session")
def shared_worlds(shared_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, World]]:
    """Three nodes, each in a zone and a lab of its own."""
    directory = tmp_path_factory.mktemp("nodes")
    with World(directory, "node-b", "zone-b") as second, World(directory, "node-c", "zone-c") as third:
        yield {"node-a": shared_world, "node-b": second, "node-c": third}
        for each in (second, third):
            each.agent.check_log()


@pytest.fixture
def worlds(shared_worlds: dict[str, World]) -> dict[str, World]:
    """Three nodes with their agents, in a cluster without Services."""
    for each in shared_worlds.values():
        each.clear()
    return shared_worlds
