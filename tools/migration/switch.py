"""A node that changes its proxy, step by step, and the fate of the connections that began in each step."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import NamedTuple

from nftproxy_conformance.lab import RealNetwork, RealNode
from nftproxy_conformance.subjects.spellings import respelt

from nftproxy.sources.documents import to_yaml, yaml_documents
from tests.support.processes import CHECKOUT, AgentProcess, start_module
from tests.support.waiting import wait_until
from tools.migration.traffic import LATE, Client, Front, Try, asking, await_tries

EXAMPLE = CHECKOUT / "examples" / "migrate"
VIP = "10.96.0.10"
WEB, DNS, WEB_NODE_PORT = 80, 53, 30080
PODS = {"web-0": ("10.1.0.4", "fd00:1::4"), "web-1": ("10.1.0.5", "fd00:1::5")}
STARTING = 60.0  # seconds that the agent may take on a busy machine
PATH = {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


class Shape(NamedTuple):
    """The form of kube-proxy's rules: its mode, the commands that write them, each with its input, and a caveat.

    `serves` says whether this kernel translates connections by them.  Without IPVS in it the rules of IPVS mode don't.
    """

    mode: str
    commands: tuple[tuple[str, str], ...]
    serves: bool = True


SHAPES = {
    "iptables (nft)": Shape("iptables", (("iptables-nft-restore --noflush", "iptables.rules"),)),
    "iptables (legacy)": Shape("iptables", (("iptables-legacy-restore --noflush", "iptables.rules"),)),
    "ipvs": Shape(
        "ipvs",
        (("ipset restore", "ipvs.ipset"), ("iptables-nft-restore --noflush", "ipvs.rules")),
        serves=False,
    ),
    "nftables": Shape("nftables", (("nft -f -", "nftables.nft"),)),
}


class Step(NamedTuple):
    """A step of the switch, and when it began and was done, by `time.monotonic`."""

    name: str
    began: float
    done: float


class Account(NamedTuple):
    """A whole switch: its steps, and all tries of all clients."""

    shape: str
    steps: tuple[Step, ...]
    tries: tuple[Try, ...]

    def rows(self) -> Iterator[Row]:
        """A row for each step: the tries that began from its beginning until the next step's."""
        ends = [step.began for step in self.steps[1:]] + [float("inf")]
        for step, end in zip(self.steps, ends, strict=True):
            tries = [each for each in self.tries if step.began <= each.began < end]
            new, kept = [each for each in tries if each.is_new], [each for each in tries if not each.is_new]
            yield Row(
                step.name,
                step.done - step.began,
                len(new),
                sum(bool(each.fault) for each in new),
                sum(each.seconds > LATE and not each.fault for each in tries),
                len(kept),
                sum(bool(each.fault) for each in kept),
            )


COUNTS = ("new connections", "lost", f"later than {LATE} s", "questions over kept connections", "ended")
"""Columns of a table of rows, after the step and its seconds."""


class Row(NamedTuple):
    """The fate of the connections of a step, with the numbers of `COUNTS`."""

    step: str
    seconds: float
    new: int
    new_lost: int
    late: int
    asked: int
    ended: int


def switch(name: str, *, tries: int, kept: int, has_old_spellings: bool = False) -> Account:
    """Take a node from kube-proxy's rules of a shape to nftproxy and back.

    Args:
        name: of the shape, in `SHAPES`.
        tries: questions of each client after each step, at the least.
        kept: connections that each client keeps.
        has_old_spellings: whether the cluster has stored its addresses as API servers before 1.36 took them.
            kube-proxy's rules are the same for both spellings.
    """
    shape = SHAPES[name]
    with ExitStack() as stack:
        network = stack.enter_context(RealNetwork())
        node = network.node()
        for pod, addresses in PODS.items():
            made = node.pod(pod, *addresses)
            made.serve(8080)
            made.serve(5353, "udp")
        fronts = fronts_of(network, node)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stored(directory / "node") if has_old_spellings else EXAMPLE / "node"
        agent = AgentProcess(node.node, directory / "log")
        stack.callback(agent.kill)
        _write(node, shape)
        before = [] if shape.serves else [_timed("nftproxy starts", lambda: _start(agent, cluster))]
        with asking(fronts, kept) as clients:
            steps = followed(_steps(node, shape, agent, cluster), clients, tries)
        return account(name, [*before, *steps], clients)


def followed(steps: Iterable[tuple[str, Callable[[], object]]], clients: Sequence[Client], tries: int) -> list[Step]:
    """Take steps, after each of which each client tries so often at the least."""
    done = []
    for what, action in steps:
        done.append(_timed(what, action))
        await_tries(clients, tries)
    return done


def account(name: str, steps: Iterable[Step], clients: Sequence[Client]) -> Account:
    """Return the account of steps, once the clients have ended."""
    return Account(name, tuple(steps), tuple(sorted(each for client in clients for each in client.tries)))


def _timed(what: str, action: Callable[[], object]) -> Step:
    began = time.monotonic()
    action()
    return Step(what, began, time.monotonic())


def _steps(
    node: RealNode, shape: Shape, agent: AgentProcess, cluster: Path
) -> Iterator[tuple[str, Callable[[], object]]]:
    """The steps under traffic in their order.  Where kube-proxy's rules don't serve, all are between ours."""
    if shape.serves:
        yield "kube-proxy's rules", lambda: None
        yield "nftproxy starts", lambda: _start(agent, cluster)
    yield "cleanup --kube-proxy", lambda: clean_up(node, shape.mode)
    yield "kube-proxy's rules again", lambda: _write(node, shape)
    yield "nftproxy ends", agent.stop
    if shape.serves:
        yield "cleanup", lambda: _nftproxy(node, "cleanup")


def fronts_of(network: RealNetwork, node: RealNode) -> list[Front]:
    """The connections to try: of a pod, of the node, and of a machine outside."""
    pod = node.pod("client", "10.1.0.99", "fd00:1::99")
    outside = network.host("outside", "198.51.100.99", "2001:db8:100::99")
    return [
        Front("pod to ClusterIP", pod, VIP, WEB, "tcp"),
        Front("node to ClusterIP", node, VIP, WEB, "tcp"),
        Front("outside to node port", outside, node.address, WEB_NODE_PORT, "tcp"),
        Front("pod to ClusterIP, UDP", pod, VIP, DNS, "udp"),
    ]


def stored(directory: Path) -> Path:
    """Write the cluster into a new directory, with the addresses' spellings that newer API servers deny."""
    directory.mkdir()
    documents = yaml_documents((EXAMPLE / "node" / "cluster.yaml").read_text())
    (directory / "cluster.yaml").write_text(to_yaml([respelt(each.value) for each in documents]))
    return directory


def _start(agent: AgentProcess, cluster: Path) -> None:
    """Start the agent, and wait until its rules are loaded."""
    agent.launch("--source", str(cluster), "--config", str(EXAMPLE / "config.yaml"))
    wait_until(lambda: agent.has_died or "loaded the rules" in agent.log(), agent.log, patience=STARTING, pause=0.005)
    assert not agent.has_died, agent.log()


def _write(node: RealNode, shape: Shape) -> None:
    """Write kube-proxy's rules, as it does itself when it starts: existing rules are written anew."""
    for command, file in shape.commands:
        node.node.run(["env", f"PATH={PATH['PATH']}", *command.split()], (EXAMPLE / file).read_text())


def clean_up(node: RealNode, mode: str) -> None:
    """Remove kube-proxy's rules of a mode."""
    _nftproxy(node, "cleanup", "--kube-proxy", mode)


def _nftproxy(node: RealNode, *arguments: str) -> None:
    process = start_module(node.node, "nftproxy", *arguments, stdout=PIPE, stderr=STDOUT, text=True, env=PATH)
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"nftproxy {' '.join(arguments)}: {out}")
