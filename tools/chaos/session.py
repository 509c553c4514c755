"""A run: objects change, connections are tried and faults happen at once, and after each fault all must be right.

All is right if the kernel holds the rules that a pipeline makes of the API server's objects, none of its chains is
empty, every resource is watched, and the agent says that it is healthy.  All the time no verdict may be "well" for
long while connections go wrong (watcher.py).  Changes rest while that is looked at, so that
there is a moment at which it can be so.  At the end the kernel is held against the output of `nftproxy render` for the
same objects, loaded into a namespace of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab
from nftproxy_conformance.lab.node import Node
from nftproxy_conformance.lab.topology import NODE_NAME
from nftproxy_conformance.strategies.probes import MORE_IPS

from nftproxy.installed_fields import FIELDS
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.rules.ruleset import Element
from nftproxy.sources.config_documents import load_config
from tests.support.background import repeating
from tests.support.factories import leads_to_a_chain
from tests.support.processes import CHECKOUT
from tests.system.faults.bench import PERMISSIONS, RESOURCES
from tests.system.faults.hasty import BOOKMARKS
from tools.chaos.agent import PATIENCE, ChaosAgent
from tools.chaos.cluster import Cluster
from tools.chaos.faults import FAULTS, Scene
from tools.chaos.traffic import REST, Traffic
from tools.chaos.watcher import PAUSE as PAUSE_BETWEEN_SAMPLES
from tools.chaos.watcher import Watcher

PAUSE = (0.02, 0.15)
"""Seconds between two changes of objects."""
FEWEST = 20
"""Connections that must have been judged for each fault that happened: else nothing was tried."""
GROWTH = 2.0
"""How many times as much memory the agent may have at the end as after its first load."""
AT_ONCE = 0.3
"""How often two faults happen at the same time."""

Say = Callable[[str], None]


class Session:
    """A lab with an API server, an agent, objects that change and traffic.  A context manager.

    Args:
        seed: of everything that is drawn.
        directory: for the agent's files and log.
        say: takes lines for people.

    Attributes:
        violations: a sentence for each violation.
        faults: how often each fault has happened.
        slowest: the most seconds that it took until all was right after each fault.
    """

    def __init__(self, seed: str, directory: Path, say: Say) -> None:
        self.violations: list[str] = []
        self.faults: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self._seed = seed
        self._say = say
        self._directory = directory
        self._changing = threading.Lock()
        self._pauses = Random(f"{seed}/pauses")
        with ExitStack() as stack:
            self._lab = stack.enter_context(Lab())
            for address in MORE_IPS:
                self._lab.add_address(str(address))
            make_socket = self._lab.node.socket
            self._server = stack.enter_context(ApiServer(tls=True, authenticate=True, make_socket=make_socket))
            self._server.rbac = PERMISSIONS
            self._server.settings.bookmark_interval = BOOKMARKS
            self.agent = stack.enter_context(ChaosAgent(self._lab, self._server, directory))
            config = load_config(self.agent.config_map.path, FIELDS)[0]
            self._cluster = Cluster(self._server, config, seed)
            self.watcher = Watcher(self.agent, self._cluster, lambda: self.traffic.harms())
            self.traffic = Traffic(self._lab, self._cluster, seed, self.watcher.suspect)
            self._stack = stack.pop_all()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def changes(self) -> int:
        """How many changes of objects there were."""
        return self._cluster.changes

    def run(self, seconds: float, only: Collection[str] = ()) -> None:
        """Let faults happen for so long, by default all faults in turns, and then compare with `render`."""
        self._cluster.furnish(time.monotonic())
        self.agent.start()
        self._settle("start")
        first = self.agent.resident
        end = time.monotonic() + seconds
        watching = repeating(self.watcher.sample, PAUSE_BETWEEN_SAMPLES)
        with ExitStack() as stack, repeating(self.traffic.try_some, REST), repeating(self._change):
            self._lab.node.call(stack.enter_context, watching)  # its thread asks from the node's namespace
            for number, names in enumerate(drawn(self._seed, only)):
                if time.monotonic() >= end:
                    break
                self._happen(number, names)
        self._settle("end")
        self._judge(first)

    def _change(self) -> None:
        time.sleep(self._pauses.uniform(*PAUSE))
        with self._changing:
            self._cluster.change(time.monotonic())

    def _happen(self, number: int, names: tuple[str, ...]) -> None:
        """Let a fault happen, or two at once, and wait until all is right."""
        self._say(f"{number}: {' and '.join(names)}")
        scene = Scene(self.agent, self._server, self._cluster, self._changing, self.traffic.harmed)
        began = time.monotonic()
        with ThreadPoolExecutor() as executor:
            striking = {
                name: executor.submit(FAULTS[name].strike, scene, Random(f"{self._seed}/{number}/{name}"))
                for name in names
            }
            for name, each in striking.items():
                try:
                    each.result()
                except AssertionError as error:  # the agent isn't there, doesn't end, or misbehaves
                    self._violation(f"{name}: {error}")
        struck = time.monotonic() - began
        self.faults.update(names)
        took = self._settle(" and ".join(names))
        for name in names:
            self.slowest[name] = max(self.slowest.get(name, 0.0), took)
        self._say(f"   {struck:.1f} s, and right after {took:.1f} s more")

    def _settle(self, what: str) -> float:
        """Wait until all is right, with objects at rest.  Returns the seconds that it took."""
        began = time.monotonic()
        if self.agent.has_died:
            self._violation(f"{what}: the agent has ended by itself: {self.agent.log()[-2000:]}")
            self.agent.start()
        with self._changing:
            self._server.faults.clear()
            try:
                self.agent.wait_until_right(PATIENCE)
            except AssertionError as error:
                self._violation(f"{what}: not right after {PATIENCE:.0f} s: {error}")
            now = time.monotonic()
            self.traffic.mended()
            self._cluster.histories.settled(now)
        return now - began

    def _judge(self, first: int) -> None:
        """Judge the run at its end."""
        self.violations += [f"a connection: {each}" for each in self.traffic.wrong]
        self.violations += [f"blind: {each}" for each in self.watcher.blind]
        if missing := FEWEST * self.faults.total() - self.traffic.judged:
            self.violations += [f"{missing} connections too few were judged"] if missing > 0 else []
        if "Traceback" in (log := self.agent.log()):
            self._violation(f"the agent's log has a traceback: {log[max(0, log.index('Traceback') - 500) :][:4000]}")
        if self.agent.resident > GROWTH * first:
            self._violation(f"the agent's memory grew from {first >> 20} to {self.agent.resident >> 20} MB")
        self.violations += self._differences()

    def _violation(self, text: str) -> None:
        self._say(f"VIOLATION: {text}")
        self.violations.append(text)

    def _differences(self) -> Iterator[str]:
        """The differences between the kernel and the output of `nftproxy render` for the API server's objects."""
        with Node("rendered") as node:
            node.load(self._rendered())
            for family in Family:
                held, wanted = (_elements(place, family) for place in (self._lab.node, node))
                for element in sorted(held ^ wanted, key=repr):
                    whose = "kernel" if element in held else "render"
                    yield f"only the {whose} has {family.value} {element.container} {element.text}"

    def _rendered(self) -> str:
        path = self._directory / "objects.json"
        items = [
            {"apiVersion": resource.kind.api_versions[0], "kind": resource.kind.name} | each
            for resource in RESOURCES
            for each in self._server.objects(resource.kind.name)
        ]
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        command = [sys.executable, "-m", "nftproxy", "render", str(path), "--node", NODE_NAME]
        command += ["--config", str(self.agent.config_map.path)]
        return subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _elements(node: Node, family: Family) -> frozenset[Element]:
    """The elements of a kernel, less those that lead to chains, which stay once they were needed."""
    found = node.call(lambda: Kernel().elements(family))
    return frozenset(each for each in found if not leads_to_a_chain(each))


def drawn(seed: str, only: Collection[str] = ()) -> Iterator[tuple[str, ...]]:
    """Faults without end, single or two of different groups.  Each has its turn before any has another."""
    rng = Random(f"{seed}/faults")
    while True:
        deck = sorted(only or FAULTS)
        rng.shuffle(deck)
        while deck:
            name = deck.pop()
            others = [each for each in deck if FAULTS[each].group != FAULTS[name].group]
            if others and rng.random() < AT_ONCE:
                deck.remove(others[-1])
                yield name, others[-1]
            else:
                yield (name,)
