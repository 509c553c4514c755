"""Any proxy that takes a KubeProxyConfiguration, as a process on a scratch node that follows our API server.

The proxy is a black box: a command starts it, it reads the cluster from the API, and it has caught up when connections
to the control plane's marker work (plane.py).  It gets a new node for another configuration or another Node, which
proxies read once, and if it would remember clients from another cluster.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from nftproxy.extensions.failover.gone_addresses import START_PAUSE
from nftproxy.model.codes import Code
from nftproxy.model.errors import NftproxyError
from nftproxy.model.events import Event
from nftproxy.model.objects import Node
from nftproxy.model.settings import Config, DetectLocalMode, NodePortAddresses
from nftproxy.sources.documents import to_yaml
from nftproxy_conformance.lab import DROPPED, TCP_RESET, Address, Kind, Lab, Outcome, Probe
from nftproxy_conformance.lab.topology import SITE, Site
from nftproxy_conformance.specification.deviations import OWN_SETTINGS
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies.focused import PLAIN_NODE
from nftproxy_conformance.strategies.probes import MORE_IPS
from nftproxy_conformance.subjects.manifests import Manifest, objects, settings, stamped
from nftproxy_conformance.subjects.plane import ControlPlane

PATIENCE = 60.0
"""Seconds in which a proxy must apply changes, by default.  kube-proxy's default is to gather changes for 1 s."""
ENDING = 10.0
"""Seconds in which a proxy must end connections to endpoints that are gone.  nftproxy takes two."""
ANSWERING = 5.0
"""Seconds in which a proxy must answer a health check."""
PAUSE = 0.01
"""Seconds between two checks."""
GRACE = 10.0
"""Seconds that a proxy has to end after SIGTERM."""
TAIL = 30
"""Lines of a proxy's output that an error shows."""
PLACEHOLDER = "{config}"
_DEFAULTS = Config()


class ProxyFailed(NftproxyError):
    """A proxy ended, or didn't apply changes in time.  The message has the end of its output."""

    code = Code.PROXY_ON_TRIAL_FAILED


class Presentation(NamedTuple):
    """The presentation of a world to a proxy.

    Args:
        objects: returns the API server's objects.
        configuration: returns the KubeProxyConfiguration, to which the run adds its own fields.
        site: the node's addresses, and routes to its pods.
        more_addresses: addresses to add to the node's uplink, without prefix lengths.
    """

    objects: Callable[[World], list[Manifest]]
    configuration: Callable[[World], Manifest]
    site: Site = SITE
    more_addresses: tuple[str, ...] = MORE_IPS


def made_up(base: Manifest) -> Presentation:
    """The presentation of made-up worlds, with a configuration that has the fields of `base` too."""
    return Presentation(
        lambda world: list(map(stamped, objects(world))), lambda world: merged(base, settings(world.config))
    )


class Proxy:
    """A proxy on a scratch node of its own, a `Subject`.

    Args:
        command: a command line, in which `{config}`, `{kubeconfig}` and `{node}` are replaced.
        plane: the cluster.
        shown: the presentation of worlds.
        directory: for its configuration and its output.
        may_deviate: whether it may behave like kube-proxy where nftproxy deviates from that.
        patience: seconds in which it must apply changes, `PATIENCE` by default.
    """

    def __init__(
        self,
        command: str,
        plane: ControlPlane,
        shown: Presentation,
        directory: Path,
        *,
        may_deviate: bool = True,
        patience: float | None = None,
    ) -> None:
        self.may_deviate = may_deviate
        self._patience = PATIENCE if patience is None else patience
        self._words = shlex.split(command)
        self._plane, self._shown = plane, shown
        self._config, self._output = directory / "config.yaml", directory / "output"
        self._lab: Lab | None = None
        self._process: subprocess.Popen[Any] | None = None
        self._world: World | None = None
        self._begun_with: World | None = None
        self._has_remembered = False
        self._started = 0.0

    @property
    def lab(self) -> Lab:
        """The lab of the present node."""
        assert self._lab, "nothing was loaded"
        return self._lab

    def load(self, world: World) -> bool:
        """Load the cluster of a world, and wait until the proxy serves it.  True if that took a new node.

        Raises:
            LabError: no node can be made, or the machine loses packets.
            ProxyFailed: the proxy ended, or doesn't serve in time.
        """
        self._plane.become(self._shown.objects(world))
        is_new = not self._can_follow(world)
        if is_new:
            self._begin(world)
        self._serve(world)
        return is_new

    def follow(self, after: World, happened: Sequence[Event]) -> None:  # noqa: ARG002 -- the API server has objects
        """Load the cluster of another world on the same node, and wait until the proxy serves it.

        Raises: as `load` does.
        """
        self._plane.become(self._shown.objects(after))
        self._serve(after)

    def renew(self) -> bool:
        """Let the proxy serve the present world on a new node, and return True.

        Raises: as `load` does.
        """
        assert self._world, "nothing was loaded"
        self._begin(self._world)
        self._serve(self._world)
        return True

    def _serve(self, world: World) -> None:
        """Wait until the proxy serves the cluster of a world."""
        self._world = world
        self._has_remembered |= _remembers(world)
        self.settle()

    def settle(self) -> bool:
        """Wait until the proxy serves the whole cluster, and return True.

        A proxy that ends meanwhile is restarted once, as by a kubelet: some proxies end to read their Node again.

        Raises: as `load` does.
        """
        wanted = self._plane.move_marker()
        end, may_restart = time.monotonic() + self._patience, True
        while idle := self._unserved(wanted):
            if self._has_ended():
                if not may_restart:
                    raise self._failure("the proxy ends again and again")
                may_restart = False
                self._start()
            if time.monotonic() > end:
                raise self._failure(
                    f"after {self._patience:g} s the proxy does not serve the marker Service at {' and '.join(idle)}"
                )
            time.sleep(PAUSE)
        return True

    def leave_out(self, world: World) -> None:
        """Do nothing: the proxy finds silent endpoints itself, by their packets."""

    def end_gone(self) -> float:
        """Return the seconds in which the proxy must end connections to endpoints that are gone."""
        return max(0.0, self._started + START_PAUSE - time.monotonic()) + ENDING

    def health(self, probe: Probe) -> Outcome:
        """Ask the proxy on its node."""
        return self.lab.node.call(asked, probe)

    def _unserved(self, wanted: Mapping[Probe, Address]) -> list[str]:
        """The marker's addresses whose connections don't reach its endpoints yet."""
        outcomes = self.lab.connect_many(wanted)
        return [probe.address for probe, seen in zip(wanted, outcomes, strict=True) if seen.endpoint != wanted[probe]]

    def close(self) -> None:
        """End the proxy and remove its node."""
        self._stop()
        if self._lab:
            self._lab.close()
            self._lab = None

    def _can_follow(self, world: World) -> bool:
        """True if the running proxy can reach a world by changes in the API alone."""
        begun = self._begun_with
        if begun is None or self._process is None or self._has_ended():
            return False
        same = (begun.config, _but_for_zone(begun.node)) == (world.config, _but_for_zone(world.node))
        return same and not (self._has_remembered and _remembers(world))

    def _begin(self, world: World) -> None:
        """Start the proxy on a new node."""
        self.close()
        self._lab = Lab(site=self._shown.site)
        for address in self._shown.more_addresses:
            self._lab.add_address(address)
        self._plane.link(self._lab.node)
        own = {
            "clientConnection": {"kubeconfig": str(self._plane.kubeconfig)},
            "hostnameOverride": world.node.name,
            "conntrack": {"maxPerCore": 0},  # the machine's own limit, which is no namespace's to change
            "nftables": {"minSyncPeriod": "20ms"},
            "iptables": {"minSyncPeriod": "20ms"},
        }
        self._config.write_text(to_yaml([merged(self._shown.configuration(world), own)]))
        self._begun_with, self._has_remembered = world, False
        self._start()

    def _start(self) -> None:
        assert self._lab
        assert self._begun_with
        values = {
            PLACEHOLDER: str(self._config),
            "{kubeconfig}": str(self._plane.kubeconfig),
            "{node}": self._begun_with.node.name,
        }
        command = [_filled(word, values) for word in self._words]
        self._started = time.monotonic()
        with self._output.open("wb") as output:
            self._process = self._lab.node.popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # no process is left
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _failure(self, what: str) -> ProxyFailed:
        lines = self._output.read_text(errors="replace").splitlines()[-TAIL:]
        self._begun_with = None  # the next world begins on a new node
        return ProxyFailed("\n".join([f"{what}; the last that it printed:", *(f"  {line}" for line in lines)]))


def asked(probe: Probe) -> Outcome:
    """The answer to a health check from this network namespace, a reset if nobody listens."""
    connection = http.client.HTTPConnection(probe.address, probe.port, timeout=ANSWERING)
    try:
        connection.request("GET", "/healthz")
        return Outcome(Kind.ANSWERED, how=f"HTTP {connection.getresponse().status}")
    except ConnectionError:
        return TCP_RESET
    except (OSError, http.client.HTTPException):
        return DROPPED
    finally:
        connection.close()


def suited(world: World, kept: Collection[str] = ()) -> World:
    """Return a made-up world without the settings that only nftproxy has, except for those in `kept`.

    With detectLocalMode NodeCIDR a Node has pod CIDRs, as kube-proxy waits for them at its start.
    """
    config = structs.replace(
        world.config,
        node_port_addresses=_known_to_any(world.config.node_port_addresses),
        **{name: getattr(_DEFAULTS, name) for name in OWN_SETTINGS if name not in kept},
    )
    node = world.node
    if config.detect_local_mode is DetectLocalMode.NODE_CIDR and not node.pod_cidrs:
        node = structs.replace(node, pod_cidrs=PLAIN_NODE.pod_cidrs)
    return world._replace(config=config, node=node, knows_interfaces=True)


def _known_to_any(asked: NodePortAddresses) -> NodePortAddresses:
    """Addresses for node ports as kube-proxy 1.36 takes them: "primary" alone, or networks, and no "localhost"."""
    return NodePortAddresses(primary=False, networks=asked.networks) if asked.networks else NodePortAddresses()


def merged(under: Manifest, over: Manifest) -> Manifest:
    """Merge two documents field by field.  Fields of `over` win."""
    made = dict(under)
    for name, value in over.items():
        old = made.get(name)
        made[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return made


def _filled(word: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word


def _but_for_zone(node: Node) -> Node:
    """A Node without its zone, whose changes proxies follow."""
    return structs.replace(node, zone="")


def _remembers(world: World) -> bool:
    return any(service.affinity_timeout is not None for service in world.services)
