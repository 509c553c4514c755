"""`python -m tools.neighbours.trial NEIGHBOUR`: start a neighbour on a scratch node, and compare connections.

The cluster is examples/everything, and a Service that the specification isn't asked for: real connections of a client
go through it to a server behind the node, one of them throughout.
"""

from __future__ import annotations

import datetime
import os
import platform
import signal
import sys
import tempfile
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import click
import yaml
from nftproxy_conformance.lab import Namespace
from nftproxy_conformance.lab.echo import Conversation, EchoServer
from nftproxy_conformance.lab.node import Node
from nftproxy_conformance.reports.comparison import Comparison, show
from nftproxy_conformance.session import OURS
from nftproxy_conformance.subjects.plane import ControlPlane
from nftproxy_conformance.subjects.proxy import Proxy
from nftproxy_conformance.trials.own import flows, own_cluster
from nftproxy_conformance.trials.trial import Trial

from nftproxy.model.errors import Unavailable
from nftproxy.sources.files import load_documents
from nftproxy.trace.links import add_addresses, join
from tests.support.waiting import PATIENCE
from tools.support.results import CHECKOUT, SupportResult, record
from tools.support.subjects import NEIGHBOURS, NEIGHBOURS_SUITE, NEWER
from tools.vm.machine import OPTIONS

BESIDE = Path(__file__).with_name("beside.sh")
SERVICE = Path(__file__).with_name("service.yaml")
EXAMPLE = CHECKOUT / "examples" / "everything"
VIP, PORT = "10.96.200.1", 80
CLIENT, SERVER, SERVER_PORT = "10.1.200.2", "10.1.201.2", 8080


class Surroundings(ControlPlane):
    """A control plane, and a node's neighbour, with a client and a server behind the node.

    Args:
        directory: an empty folder.
        neighbour: its script.

    Attributes:
        client: the client's namespace.
        server: the server's.
    """

    def __init__(self, directory: Path, neighbour: str) -> None:
        super().__init__(directory)
        self._log, self._neighbour = directory / "log", neighbour
        self.client, self.server = (self._stack.enter_context(Namespace(name)) for name in ("client", "server"))
        self.server.ip("link set lo up", f"address add {SERVER} dev lo")
        self._stack.enter_context(closing(EchoServer(self.server, "server", SERVER, SERVER_PORT)))
        os.environ |= {"CLIENT": self.client.path, "SERVER": self.server.path, "SCRATCH": str(directory)}

    def link(self, node: Node) -> None:
        """Link a node to the API server, the client, and the server, and start the neighbour.

        Raises:
            Unavailable: the neighbour can't be started.
        """
        super().link(node)
        for name, host, near, far in (
            ("client0", self.client, "10.1.200.1/24", f"{CLIENT}/24"),
            ("server0", self.server, "172.31.0.1/24", "172.31.0.2/24"),
        ):
            join(node, name, host, "eth0")
            add_addresses(node, name, near)
            add_addresses(host, "eth0", far)
            host.ip(f"route add default via {near.partition('/')[0]}")
        with self._log.open("w") as log:
            started = node.popen(beside(self._neighbour, "start"), stdout=log, stderr=log, start_new_session=True)
        self._stack.callback(_kill, started.pid)
        if started.wait():
            raise Unavailable(self._log.read_text())


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):  # a neighbour without processes
        os.killpg(group, signal.SIGKILL)


def beside(name: str, step: str) -> list[str]:
    """The command for a step of a neighbour."""
    return ["bash", str(BESIDE), name, step]


def try_beside(name: str) -> str:
    """Try connections beside a neighbour, and after its reload.  Returns the result in words.

    Raises:
        Unavailable: the neighbour can't be started, or its rules aren't there.
        OSError: the connection that lasts is broken.
    """
    documents = [dict(each) for each in load_documents([EXAMPLE / "manifests"], [])]
    cluster = own_cluster(documents, yaml.safe_load((EXAMPLE / "config.yaml").read_text()))
    with_server = [*cluster.documents, *yaml.safe_load_all(SERVICE.read_text())]
    shown = cluster.presentation()._replace(objects=lambda _: with_server)
    probes = flows(cluster.world)
    counts = []
    with tempfile.TemporaryDirectory(prefix="nftproxy-neighbour-") as scratch, ExitStack() as stack:
        around = stack.enter_context(closing(Surroundings(Path(scratch), name)))
        proxy = Proxy(OURS, around, shown, Path(scratch), patience=PATIENCE)
        trial = stack.enter_context(Trial(proxy))
        trial.load(cluster.world)
        kept = stack.enter_context(Conversation(around.client, VIP, PORT, "tcp", timeout=PATIENCE))
        for step in ("works", "reload"):
            kept.ask()
            proxy.lab.node.run(beside(name, step))
            found = trial.differences(cluster.world, probes)
            show(Comparison(cluster, probes, found), output="text")
            counts.append(len(found))
        kept.ask()
        proxy.lab.node.run(beside(name, "works"))
    before, after = counts
    return (
        f"{'failed: ' if any(counts) else ''}{before} of {len(probes)} connections wrong, {after} after its reload, "
        f"a kept one went on (Linux {platform.release().partition('-')[0]})"
    )


@click.command()
@click.argument("name", type=click.Choice(list(NEIGHBOURS)))
def main(name: str) -> None:
    """Try nftproxy beside a neighbour, and record the result.  Ends with 1 if the neighbour disturbs it."""
    try:
        result = try_beside(name)
    except (Unavailable, OSError) as error:
        result = f"failed: {error}".partition("\n")[0]
    click.echo(result)
    tree = f"{NEWER.get(name, NEIGHBOURS_SUITE)}+neighbours"
    record(
        SupportResult(
            topic="neighbours",
            row=NEIGHBOURS[name],
            column="connections of examples/everything",
            command=f"python -m tools.neighbours {name}"
            if OPTIONS in os.environ
            else f"tools/debian/debian.sh {tree} python -m tools.neighbours.trial {name}",
            date=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
            result=result,
        )
    )
    sys.exit(result.startswith("failed"))


if __name__ == "__main__":
    main()
