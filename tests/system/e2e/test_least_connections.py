"""Shares follow connections: a real agent, and real clients that hold connections to a pod."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from nftproxy_conformance.lab import obstacle

from tests.support.cluster import IP6, Ip
from tests.system.e2e import silent_town
from tests.system.e2e.agent import eventually
from tests.system.e2e.silent_town import PORT, Town, put_service

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]

LEAST = {"annotations": {"nftproxy.dev/algorithm": "least-connections"}}
HELD = 40
"""Connections that clients hold to a pod."""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """Node-a with the agent, and two pods elsewhere."""
    with silent_town.town(tmp_path_factory.mktemp("node-a")) as made:
        yield made


def ends(town: Town, *letters: str) -> list[str]:
    """The endpoints of pods, by the letters of their nodes."""
    pods = [(letter, town.pods[f"web-{letter}"]) for letter in letters]
    return [f"{address}@node-{letter}" for letter, pod in pods for address in (pod.address, pod.address6)]


def share(town: Town, ip: Ip, letter: str) -> float:
    """The percentage of new connections to the Service "least" that a pod gets."""
    pod = town.pods[f"web-{letter}"]
    return town.shares("least")[pod.address6 if ip is IP6 else pod.address]


def test_a_pod_with_many_connections_gets_fewer(town: Town, ip: Ip) -> None:
    """While clients hold connections to a pod, new ones go to the other.  An eighth of an equal share stays.

    The clients use a Service that has only this pod.  A Service whose pods have no connections is left alone.
    """
    put_service(town.server, "busy", ("10.96.0.40", "fd00:96::40"), ends(town, "b"), metadata={})
    put_service(town.server, "least", ("10.96.0.41", "fd00:96::41"), ends(town, "b", "c"), metadata=LEAST)
    busy, least = ("fd00:96::40", "fd00:96::41") if ip is IP6 else ("10.96.0.40", "10.96.0.41")
    eventually(lambda: town.answering(least), {"web-b", "web-c"})
    eventually(lambda: town.answering(busy), {"web-b"})
    before = town.metric("nftproxy_rebalanced_lists_total")
    with ExitStack() as stack:
        for _ in range(HELD):
            assert stack.enter_context(closing(town.client.talk(busy, PORT, timeout=10))).ask().name == "web-b"
        eventually(lambda: share(town, ip, "b"), 6.2)
        names = [town.client.ask(least, PORT, timeout=10).name for _ in range(200)]
        assert 0 < names.count("web-b") < 50
    assert town.metric("nftproxy_rebalanced_lists_total") > before
    with ExitStack() as stack:
        for _ in range(HELD):
            while (held := town.client.talk(least, PORT, timeout=10)).ask().name != "web-c":
                held.close()
            stack.enter_context(closing(held))
        eventually(lambda: share(town, ip, "b") > 50, True)
    for name in ("busy", "least"):
        town.remove_service(name)
