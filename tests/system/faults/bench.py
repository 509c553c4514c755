"""The agent as a process on a lab's node, its API server, and the rules that the agent should load.

    with Bench(lab, server, directory) as bench:
        bench.start()
        server.put(service(1), endpoints(1))
        bench.wait_until_right()

The wanted rules come from the pure middle alone: a pipeline that ingests the server's present objects.
"""

from __future__ import annotations

import http.client
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import yaml
from nftproxy_conformance.apiserver import ApiServer, Request
from nftproxy_conformance.lab import Lab
from nftproxy_conformance.lab.topology import CLUSTER_CIDR, CLUSTER_CIDR6, NODE_IP, NODE_IP6, NODE_NAME

from nftproxy.api.parse import parse_object
from nftproxy.api.resources import resources
from nftproxy.installed import INSTALLED, OPTIONS
from nftproxy.installed_fields import FIELDS
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink.nft_queries import generation
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused
from nftproxy.model.events import Listed
from nftproxy.model.objects import Ignored
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.rules.ruleset import Element
from nftproxy.sources.config_documents import load_config
from tests.support import objects
from tests.support.command import Done, nftproxy
from tests.support.config_map import ConfigMap
from tests.support.factories import leads_to_a_chain, renderer
from tests.support.flowtables import FOR_AGENTS
from tests.support.processes import AgentProcess
from tests.support.waiting import PATIENCE, wait_until
from tests.system.packets.manifests import Manifest, service_manifest, slice_manifest

RESOURCES = resources(NODE_NAME, options=OPTIONS)
PLURALS = {resource.plural for resource in RESOURCES}
PERMISSIONS = [
    ("", "services", "list"),
    ("", "services", "watch"),
    ("discovery.k8s.io", "endpointslices", "list"),
    ("discovery.k8s.io", "endpointslices", "watch"),
    ("networking.k8s.io", "servicecidrs", "list"),
    ("networking.k8s.io", "servicecidrs", "watch"),
    ("", "nodes", "list"),
    ("", "nodes", "watch"),
    ("events.k8s.io", "events", "create"),
    ("events.k8s.io", "events", "patch"),
]
"""The agent's permissions: API group, resource, verb."""
SOON = PATIENCE
"""Seconds within which the rules must be right again.  An idle machine takes less than a second."""
CROWD = 2000
"""`change` never deletes Services from this number on."""
SYNC_PERIOD = 1
"""Seconds between the agent's periodic checks in most tests."""

Held = dict[Family, frozenset[Element]]


def service(number: int, **spec: Any) -> Manifest:
    """A Service at port 80/TCP, whose ClusterIP 10.96.x.y comes from its number."""
    return service_manifest(spec, name=f"s{number}", vip=vip(number))


def vip(number: int) -> str:
    """The ClusterIP of a Service by its number."""
    return f"10.96.{number >> 8}.{number & 255}"


def endpoints(number: int, *addresses: str, **fields: Any) -> Manifest:
    """The EndpointSlice of a Service.  Addresses in 10.1.0.0/24 are on this node."""
    listed = [objects.endpoint(each, NODE_NAME if each.startswith("10.1.0.") else "node-b") for each in addresses]
    return slice_manifest(*(listed or [objects.endpoint(pod(number))]), name=f"s{number}", **fields)


def pod(number: int) -> str:
    """The address of a Service's only pod, by default."""
    return f"10.1.{1 + number // 250}.{1 + number % 250}"


def node(zone: str = "a") -> Manifest:
    """The Node."""
    return objects.node(NODE_NAME, NODE_IP, NODE_IP6, zone=zone)


def service_cidr(name: str = "kubernetes", *cidrs: str) -> Manifest:
    """A ServiceCIDR."""
    return objects.service_cidr(*(cidrs or ("10.96.0.0/16",)), name=name)


def delete(server: ApiServer, objects: Iterable[Manifest]) -> None:
    """Delete objects.  An object that the server lacks is skipped."""
    for each in objects:
        name = each["kind"], each["metadata"]["namespace"], each["metadata"]["name"]
        if server.get(*name) is not None:
            server.delete(*name)


def furnish(server: ApiServer) -> None:
    """Give a server its first few objects: five Services with an endpoint each."""
    server.put(node(), service_cidr())
    for number in range(1, 6):
        server.put(service(number), endpoints(number))


def change(server: ApiServer) -> None:
    """Create, change and delete objects of all kinds.  New Services have new names, and the last call's are deleted."""
    start = 100 + 2 * (server.revision % 900)
    for earlier in server.objects("Service"):
        name = earlier["metadata"]["name"]
        if 100 <= int(name[1:]) < CROWD:
            server.delete("Service", "shop", name)
            server.delete("EndpointSlice", "shop", f"{name}-1")
    server.put(service(start), service(start + 1), endpoints(start), endpoints(start + 1))
    server.put(endpoints(1, f"10.1.1.{start % 250}", pod(1)), node(zone=f"z{start}"))
    server.put(service_cidr("more", f"10.{start % 60 + 100}.0.0/16"))


class Reply(NamedTuple):
    """The response of an HTTP server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Bench(AgentProcess):
    """An agent that tests start, stop and observe from its node.  The agent is killed at the end.

    Args:
        lab: the node and its surroundings.
        server: the API server, in the node's namespace.
        directory: the directory of the agent's configuration, credentials and log.
        module: the agent's program, for example `tests.system.faults.hasty`, which has shorter pauses.
        sync_period: seconds between the agent's periodic checks of its tables.
        arguments: the agent's arguments besides `--config`.
    """

    def __init__(
        self,
        lab: Lab,
        server: ApiServer,
        directory: Path,
        module: str = "nftproxy",
        sync_period: int = SYNC_PERIOD,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(lab.node, directory / "log", module)
        self.lab = lab
        self.server = server
        self.kubeconfig = server.write_kubeconfig(directory / "kubeconfig")
        self.configuration: dict[str, Any] = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": NODE_NAME,
            "clientConnection": {"kubeconfig": str(self.kubeconfig)},
            "clusterCIDR": f"{CLUSTER_CIDR},{CLUSTER_CIDR6}",
            "nftables": {"syncPeriod": f"{sync_period}s", "minSyncPeriod": "100ms"},
        }
        self.socket_path = directory / "run" / "agent.sock"
        self.configuration["nftproxy"] = {"agentSocket": str(self.socket_path)}
        self.config_map = ConfigMap(directory / "config", yaml.safe_dump(self.configuration))
        self.options = ("--config", str(self.config_map.path), *arguments, *FOR_AGENTS)
        self._settings = Settings(load_config(self.config_map.path, FIELDS)[0], probe().capabilities, INSTALLED)
        self._renderer = renderer()
        self._wanted: tuple[int, Held] = (-1, {})
        self._held: tuple[int, Held] = (-1, {})
        self._kernel = Kernel()
        self._since = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    # The agent

    def start(self) -> None:
        """Start the agent, without waiting until it has loaded its rules."""
        self.launch(*self.options)

    def count_anew(self) -> None:
        """Make `requests` return only later requests."""
        self._since = time.time()

    def requests(self, **wanted: str | int) -> list[Request]:
        """The requests with these values, since `count_anew`."""
        return [request for request in self.server.requests(**wanted) if request.time >= self._since]

    def listings(self, plural: str) -> list[Request]:
        """The full listings of a resource.  Listings with limit 1, for the resource version alone, are left out."""
        return [each for each in self.requests(verb="list", resource=plural) if each.query.get("limit") != "1"]

    def command(self, *arguments: str, timeout: float = SOON) -> Done:
        """Run a command on the node, with the agent's socket.  `timeout` holds unless the arguments have another."""
        patience = () if "--timeout" in arguments else ("--timeout", str(timeout))
        given = (*arguments, "--agent-socket", str(self.socket_path), *patience)
        return self.lab.node.call(lambda: nftproxy(*given))

    # Its rules

    def held(self) -> Held:
        """The elements of the kernel's sets and maps, without elements that lead to chains, as these aren't deleted."""
        return self.lab.node.call(lambda: {family: _less_entries(self._kernel.elements(family)) for family in Family})

    def has_tables(self) -> bool:
        """Whether there is a table of each family, with all its chains."""
        installed = self.lab.node.call(lambda: [self._kernel.read_back(family) for family in Family])
        return all(each is not None and each.has_hooks for each in installed)

    def wanted(self) -> Held:
        """The elements that the kernel should hold for the server's present objects."""
        revision = self.server.revision
        if self._wanted[0] != revision:
            pipeline = Pipeline(NODE_NAME, self._settings, self._renderer)
            listed = []
            for resource in RESOURCES:
                parsed = [parse_object(each, "", [], kind=resource.kind) for each in self._objects(resource.kind.name)]
                values = tuple(value for value in parsed if value is not None and not isinstance(value, Ignored))
                listed.append(Listed(resource.model, values))
            pipeline.ingest(listed)
            self._wanted = (
                revision,
                {family: _less_entries(made.elements()) for family, made in pipeline.generations.items()},
            )
        return self._wanted[1]

    def _objects(self, kind: str) -> list[Any]:
        return self.server.objects(kind)

    def is_right(self) -> bool:
        """Whether the kernel holds exactly the wanted elements.  It doesn't if a map vanishes while it is read.

        The elements are read again only after a commit.
        """
        now = self.lab.node.call(generation)
        try:
            if self._held[0] != now:
                self._held = (now, self.held())
        except Refused:
            return False
        return self._held[1] == self.wanted()

    def is_watching(self) -> bool:
        """Whether each resource has its watch."""
        return all(self.server.watches(plural) == 1 for plural in PLURALS)

    def wait_until_right(self, patience: float = SOON) -> None:
        """Wait until the kernel holds exactly the wanted elements, and all watches run."""
        self.wait_until(lambda: self.is_watching() and self.is_right(), patience)

    def wait_until(self, condition: Callable[[], object], patience: float = SOON) -> None:
        """Wait for a condition."""
        wait_until(condition, self._report, patience=patience, pause=0.03)

    def _report(self) -> str:
        asked = Counter((each.verb, each.resource, each.status) for each in self.requests())
        held, wanted = self.held(), self.wanted()
        wrong = {family: held[family] ^ wanted[family] for family in Family if held[family] != wanted[family]}
        watches = {plural: self.server.watches(plural) for plural in PLURALS}
        return f"not so; wrong: {wrong}; watches: {watches}; requests: {asked}\n{self.log()[-4000:]}"

    # The agent's HTTP servers

    def ask(self, path: str, port: int, host: str = "127.0.0.1") -> Reply:
        """GET a path from an HTTP server on the node."""
        return self.lab.node.call(_ask, host, port, path)

    def healthz(self) -> Reply:
        """The answer of /healthz, which load balancers probe."""
        return self.ask("/healthz", 10256)

    def metric(self, sample: str) -> float:
        """Return a sample of the metrics by its name and labels, or 0 if it is missing."""
        for line in self.ask("/metrics", 10249).body.decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return 0.0


def _ask(host: str, port: int, path: str) -> Reply:
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Reply(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def _less_entries(elements: Iterable[Element]) -> frozenset[Element]:
    return frozenset(each for each in elements if not leads_to_a_chain(each))
