"""Outcomes of connections when a pod dies or is replaced: `python -m tools.bench.fates`, as root.

Three nodes in network namespaces, a real agent, and a Service with two pods, with and without failover.

* A pod dies under 200 connections, over each of which the client sends a byte every half second.  The process is killed
  with -9, or the pod vanishes with its network, as with its node.  The slices lose the pod a second later.
* Two pods are replaced ten times each under 330 new connections a second, without a preStop pause: the pod closes its
  port, leaves the slices 0.5 s later, and is back after another second.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
from nftproxy_conformance.lab import RealHost, obstacle

from tests.support.background import repeating
from tests.support.cluster import IP, IP6, Ip
from tests.system.e2e.agent import eventually
from tests.system.e2e.silent_town import PORT, Connections, Town, failover, put_service, town

VIP = {IP: "10.96.0.30", IP6: "fd00:96::30"}
PODS = (("10.1.1.8", "fd00:1:0:1::8"), ("10.1.2.8", "fd00:1:0:2::8"))
LONG, BEAT, LEAVES, PATIENCE = 200, 0.5, 1.0, 60.0
ROLLOUTS, RATE, CLOSED, REPLACED, LAST = 10, 330, 0.5, 1.0, 20.0


class Pods:
    """Two pods of a Service "roll", whose servers are processes.  They end with `close`."""

    def __init__(self, world: Town, ip: Ip, words: str) -> None:
        self._world, self._ip, self._words = world, ip, words
        self.hosts: list[RealHost] = []
        self._servers: dict[str, subprocess.Popen[str]] = {}
        for node, addresses in zip(world.nodes[1:], PODS, strict=True):
            self.hosts.append(node.pod(f"r-{node.name}", *addresses))
            self.start(self.hosts[-1])
        self.put(self.hosts)

    def start(self, pod: RealHost) -> None:
        """Start a pod's server, and wait until it listens."""
        command = [sys.executable, "-m", "tools.bench.server", "8080", pod.address, pod.address6]
        server = pod.namespace.popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout
        server.stdout.readline()
        self._servers[pod.name] = server

    def kill(self, pod: RealHost) -> None:
        """Kill a pod's server with -9."""
        self._servers[pod.name].kill()
        self._servers[pod.name].wait()

    def put(self, hosts: list[RealHost]) -> None:
        """Have the slices name these pods."""
        ends = [f"{self._ip.of(pod)}@node-{pod.name[-1]}" for pod in hosts]
        put_service(self._world.server, "roll", (VIP[self._ip],), ends, metadata=failover(self._words))
        eventually(lambda: len(self._world.shares("roll")), len(hosts))

    def close(self) -> None:
        """Remove the Service and its pods."""
        self._world.remove_service("roll")
        for pod in self.hosts:
            pod.close()


def long_connections(world: Town, ip: Ip, words: str, *, vanishes: bool) -> str:
    """Let a pod die under many connections, and tell after how many seconds each client knows."""
    with contextlib.closing(Pods(world, ip, words)) as pods, contextlib.ExitStack() as stack:
        dying, other = pods.hosts
        pods.put([dying])
        clients = [stack.enter_context(_connected(world, ip)) for _ in range(LONG)]
        pods.put([dying, other])
        if vanishes:
            world.network.lose(ip.of(dying))
            stack.callback(world.network.route, ip.of(dying), world.nodes[1])
        else:
            pods.kill(dying)
        began, left = time.monotonic(), [other]
        known: dict[socket.socket, tuple[float, str]] = {}
        while len(known) < LONG and (now := time.monotonic() - began) < PATIENCE:
            if left and now >= LEAVES:
                pods.put(left)
                left = []
            for each in [each for each in clients if each not in known]:
                with contextlib.suppress(BlockingIOError):
                    if what := _fate(each):
                        known[each] = time.monotonic() - began, what
            time.sleep(max(0.0, BEAT - (time.monotonic() - began - now)))
    whys = ", ".join(f"{count} {why}" for why, count in Counter(why for _, why in known.values()).items())
    longest = f"the last after {max(seconds for seconds, _ in known.values()):.1f} s" if known else "none"
    return f"{len(known)} of {LONG} clients know within {PATIENCE:.0f} s, {longest} ({whys or 'no error'})"


def _connected(world: Town, ip: Ip) -> socket.socket:
    made = world.client.namespace.socket(socket.AF_INET6 if ip.is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    made.settimeout(PATIENCE)
    made.connect((VIP[ip], PORT))
    made.setblocking(False)
    return made


def _fate(client: socket.socket) -> str:
    """Send a byte and read what has come.  Return how the connection has ended, "" if it hasn't."""
    try:
        client.send(b"?")
        return "" if client.recv(2048) else "end of file"
    except BlockingIOError:
        return ""
    except OSError as error:
        return error.strerror or str(error)


def rollouts(world: Town, ip: Ip, words: str) -> str:
    """Replace two pods many times without a preStop pause, under new connections, and report on these."""
    with (
        contextlib.closing(Pods(world, ip, words)) as pods,
        contextlib.closing(Connections(world.client, VIP[ip], may_fail=True)) as made,
    ):
        began, numbers = time.monotonic(), itertools.count()

        def connect() -> None:
            """Begin a connection, and take answers until the next connection is due."""
            made.begin(1)
            made.wait_until(max(began + next(numbers) / RATE, time.monotonic() + 0.001))

        with repeating(connect):
            for pod in pods.hosts * ROLLOUTS:
                pods.kill(pod)
                time.sleep(CLOSED)
                pods.put([each for each in pods.hosts if each is not pod])
                time.sleep(REPLACED)
                pods.start(pod)
                pods.put(pods.hosts)
                time.sleep(REPLACED)
        made.wait(LAST)
        failures = made.failures()
        waits = Counter(round(took) for took in made.took if took > 0.5)
    late = ", ".join(f"{count} after about {seconds} s" for seconds, count in sorted(waits.items()))
    return f"{len(made.took)} connections, failed: {failures}, late: {late or 'none'}"


@click.command()
@click.option("--ip", "families", type=click.Choice(["4", "6"]), multiple=True, default=["4", "6"])
def main(families: tuple[str, ...]) -> None:
    """Print the figures of docs/reliability.md."""
    if why := obstacle():
        raise click.ClickException(why)
    with tempfile.TemporaryDirectory() as directory, town(Path(directory)) as world:
        for ip in [{"4": IP, "6": IP6}[each] for each in families]:
            for words in ("none", "refused"):
                click.echo(f"{ip.nft} {words}: rollouts: {rollouts(world, ip, words)}")
            for words in ("none", "gone"):
                for vanishes, what in ((False, "killed"), (True, "vanishes")):
                    click.echo(f"{ip.nft} {words}: {what}: {long_connections(world, ip, words, vanishes=vanishes)}")


if __name__ == "__main__":
    main()
