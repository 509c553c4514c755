"""A cluster that is watched over real connections: objects for its server, and the state that the events make.

Each test has a server with TLS that requires a token, and watches all of its resources.  It causes a fault while
objects are created, changed and deleted.  Then it waits until the state from the events equals the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from nftproxy_conformance.apiserver import ApiServer, Request

from nftproxy.api.parse import parse_object
from nftproxy.api.pauses import ReflectorTimes
from nftproxy.api.resources import Resource, resources
from nftproxy.model.events import Event, Listed
from nftproxy.model.objects import Ignored
from nftproxy.policy.state import ClusterState
from nftproxy.sources.api_client import ApiClient
from nftproxy.sources.api_connection import Timeouts
from tests.support import objects
from tests.support.waiting import PATIENCE, until

NODE = "node-a"
RESOURCES = resources(NODE)
PLURALS = {resource.plural for resource in RESOURCES}
TIMES = ReflectorTimes(
    shortest_watch=30,
    longest_watch=60,
    healthy=0.3,
    absent=0.1,
    first_attempt=0.02,
    longest_attempt=0.2,
    first_error=0.02,
    longest_error=0.2,
)
BRIEF = Timeouts(connect=0.5, answer=0.3, silence=0.4)
"""For servers that hang.  Else only a fault ends a request, however slow the machine is."""
BOOKMARKS = 0.1
"""Seconds between bookmarks: some of them fit into the time in which a watch must not be silent."""
FUTURE_WAIT = 0.1
"""Seconds for which the server waits for a version that is yet to come."""
SOON = PATIENCE
"""Seconds within which the state must be right again.  Most often it is within a tenth of a second."""

Object = dict[str, Any]


def service(number: int, *, labels: Object | None = None, **metadata: Any) -> Object:
    """A Service."""
    vip = f"10.96.{number >> 8}.{number & 255}"
    return objects.service(f"s{number}", {"clusterIP": vip}, ports=[{"port": 80}], labels=labels, metadata=metadata)


def endpoint_slice(number: int, *, port: int = 8080, labels: Object | None = None) -> Object:
    """The EndpointSlice of a Service."""
    name, pod = f"s{number}", objects.endpoint(f"10.0.0.{number & 255}", NODE)
    return objects.endpoint_slice(f"{name}-x", pod, service=name, ports=[str(port)], labels=labels or {})


def node(name: str = NODE, zone: str = "a") -> Object:
    """A Node."""
    return objects.node(name, zone=zone)


def service_cidr(name: str = "kubernetes") -> Object:
    """A ServiceCIDR."""
    return objects.service_cidr("10.96.0.0/16", name=name)


def shown(state: ClusterState) -> dict[str, object]:
    """Everything that a state knows of the cluster."""
    return {
        "services": state.services,
        "slices": state._slices,
        "node": state.node,
        "cidrs": state._service_cidrs,
    }


def truth(server: ApiServer) -> dict[str, object]:
    """The true state: the server's objects, parsed one at a time."""
    state = ClusterState(NODE)
    for resource in RESOURCES:
        outcomes = [parse_object(each, "", [], kind=resource.kind) for each in server.objects(resource.kind.name)]
        values = tuple(value for value in outcomes if value is not None and not isinstance(value, Ignored))
        state.ingest(Listed(resource.model, values))
    return shown(state)


class Following:
    """A cluster that is followed: the state that events make, and every batch of them."""

    def __init__(self, server: ApiServer, cluster: ApiClient) -> None:
        self.server = server
        self.state = ClusterState(NODE)
        self.batches: dict[str, list[list[Event]]] = {plural: [] for plural in PLURALS}
        self._cluster = cluster

    async def run(self, resource: Resource) -> None:
        """List and watch a resource until cancelled."""
        async for events in self._cluster.list_and_watch(resource):
            assert events, "nothing is told"
            self.batches[resource.plural].append(events)
            for event in events:
                self.state.ingest(event)

    async def until(self, condition: Callable[[], bool], patience: float = SOON) -> None:
        """Wait for something to be so."""
        await until(condition, self._report, patience=patience, pause=0.005)

    async def right(self, patience: float = SOON) -> None:
        """Wait until the state equals the server's, and all watches run."""
        await self.until(lambda: shown(self.state) == truth(self.server) and self.is_watching(), patience)

    def is_watching(self) -> bool:
        """Whether each resource has its watch."""
        return all(self.server.watches(plural) == 1 for plural in PLURALS)

    async def ready(self) -> None:
        """Wait until each resource has been listed."""
        await self.until(lambda: all(self.batches.values()))

    def requests(self, **wanted: Any) -> int:
        """How many requests of a sort the server had."""
        return len(self.server.requests(**wanted))

    def _report(self) -> str:
        had, wants = shown(self.state), truth(self.server)
        differing = [name for name in wants if had[name] != wants[name]]
        made = "\n".join(f"{r.verb} {r.resource} {dict(r.query)}: {r.status}" for r in self.server.requests()[-30:])
        return f"not so; state is wrong about {differing}, batches: {self.batches}; requests:\n{made}"


def listings(server: ApiServer, plural: str) -> list[Request]:
    """The requests for all objects of a resource, without probes of the server's version."""
    return [each for each in server.requests(verb="list", resource=plural) if each.query.get("limit") != "1"]


def questions(server: ApiServer, plural: str) -> list[Request]:
    """The requests that ask for the server's version only."""
    return [each for each in server.requests(verb="list", resource=plural) if each.query.get("limit") == "1"]


@contextlib.asynccontextmanager
async def following(
    server: ApiServer, cluster: ApiClient, only: Sequence[Resource] = RESOURCES
) -> AsyncIterator[Following]:
    """Follow a cluster, and stop at the end."""
    following = Following(server, cluster)
    tasks = [asyncio.create_task(following.run(resource)) for resource in only]
    try:
        yield following
        for task in tasks:
            if task.done():
                task.result()
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(server.wait_for_watches, 0, timeout=PATIENCE)


def reach(server: ApiServer, directory: Path, **more: Any) -> ApiClient:
    """The cluster of a server, by a kubeconfig in a directory."""
    config = server.write_kubeconfig(directory / "kubeconfig")
    return ApiClient(str(config), **{"times": TIMES} | more)


def change(server: ApiServer, *, start: int = 100) -> None:
    """Create, change and delete objects of all kinds."""
    server.put(service(start), service(start + 1), endpoint_slice(start), endpoint_slice(0, port=9000 + start % 100))
    server.put(service(1, labels={"changed": str(start)}), node(zone=f"z{start}"), service_cidr(f"c{start}"))
    server.delete("Service", "shop", f"s{start}")
    if server.get("EndpointSlice", "shop", "s2-x"):
        server.delete("EndpointSlice", "shop", "s2-x")
        server.delete("Service", "shop", "s2")
