"""The cost of the forwarder of node ports at localhost: `python -m tools.bench.forwarding`, as root.

Client, forwarder and server are processes in a shared namespace.  The same client takes turns between the server itself
and the forwarder before it, so that other work of the
machine falls on both.  The ratio of the two is the figure that counts.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from nftproxy_conformance.lab import Namespace, obstacle

from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.extensions.localhost.agent import relay
from nftproxy.extensions.localhost.agent.forwarder import LocalhostForwarder
from nftproxy.extensions.localhost.forwardings import Forwarding
from nftproxy.model.addresses import LOCALHOST, Address, Family
from nftproxy.model.objects import ObjectKey, Place
from tests.support.processes import cpu_seconds, start_module

SERVER = Place(Address("10.1.0.4"), 8080)
FORWARDER = Place(LOCALHOST[Family.IPV4], 30080)
BLOCK = bytes(1 << 20)
TURNS = 5
CONNECTIONS = 500


@click.group(invoke_without_command=True)
@click.option("--megabytes", default=1024, help="How much is sent in each turn.")
@click.pass_context
def main(context: click.Context, megabytes: int) -> None:
    """Compare connections through the forwarder with direct connections, and print a table."""
    if context.invoked_subcommand:
        return
    if why := obstacle():
        raise click.ClickException(why)
    with Namespace("bench") as namespace:
        namespace.ip("link set lo up", f"addr add {SERVER.address}/32 dev lo")
        with _running(namespace, "serve"):
            for name in ("forward", "copy"):
                with _running(namespace, name) as process:
                    for line in namespace.call(_compare, megabytes, process.pid):
                        click.echo(f"{name}: {line}")


@main.command()
def serve() -> None:
    """Be the server: read all that a client sends, and then answer with a byte."""
    with socket.create_server(SERVER) as listener:
        click.echo("ready")
        buffer = bytearray(1 << 20)
        while True:
            end, _ = listener.accept()
            with end:
                while end.recv_into(buffer):
                    pass
                end.sendall(b".")


@main.command()
def forward() -> None:
    """Be the forwarder."""
    asyncio.run(_forward())


@main.command()
def copy() -> None:
    """Be a forwarder that never splices."""
    relay.MUCH = 1 << 62
    asyncio.run(_forward())


async def _forward() -> None:
    forwarder = LocalhostForwarder(Metrics())
    forwarder.serve({FORWARDER: Forwarding(ObjectKey("bench", "bench"), (SERVER,), None)})
    click.echo("ready")
    await asyncio.Event().wait()


@contextmanager
def _running(namespace: Namespace, command: str) -> Iterator[subprocess.Popen[Any]]:
    """A command of this module as a process, once it is ready."""
    process = start_module(namespace, "tools.bench.forwarding", command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _compare(megabytes: int, forwarder: int) -> list[str]:
    """The table's lines, measured in the namespace."""
    before = cpu_seconds(forwarder)
    direct, forwarded = _by_turns(lambda place: megabytes / _send(place, megabytes))
    seconds = (cpu_seconds(forwarder) - before) / (TURNS * megabytes / 1024)
    lines = [
        f"throughput: {direct:,.0f} MB/s direct, {forwarded:,.0f} MB/s forwarded, ratio {forwarded / direct:.2f}",
        f"CPU of the forwarder: {seconds:.2f} s for each GB",
    ]
    before = cpu_seconds(forwarder)
    direct, forwarded = _by_turns(lambda place: CONNECTIONS / sum(_send(place, 0) for _ in range(CONNECTIONS)))
    milliseconds = (cpu_seconds(forwarder) - before) * 1000 / (TURNS * CONNECTIONS)
    return [
        *lines,
        f"connections, one after the other: {direct:,.0f}/s direct, {forwarded:,.0f}/s forwarded",
        f"CPU of the forwarder: {milliseconds:.2f} ms for each connection",
    ]


def _by_turns(measure: Callable[[Place], float]) -> tuple[float, float]:
    """The medians of a measurement, directly and through the forwarder."""
    turns = [(measure(SERVER), measure(FORWARDER)) for _ in range(TURNS)]
    return statistics.median(turn[0] for turn in turns), statistics.median(turn[1] for turn in turns)


def _send(place: Place, megabytes: int) -> float:
    """The seconds that it takes to connect, send, and hear that all has arrived."""
    began = time.perf_counter()
    with socket.create_connection(place) as end:
        for _ in range(megabytes):
            end.sendall(BLOCK)
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b"."
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
