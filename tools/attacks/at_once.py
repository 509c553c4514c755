"""All attacks at once, again and again, beside noisy tenants and connections that are judged.

Services that never change are connected to all the time, and each connection must become what the oracle says.  A quiet
tenant's only endpoint is replaced, and each wait for the kernel is measured.  At the end an agent
starts among all objects of the attacks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from nftproxy.installed_fields import FIELDS
from nftproxy.kernel.nfnetlink.elements import ElementLookup
from nftproxy.sources.config_documents import load_config
from tests.support import objects
from tests.support.background import repeating
from tests.system.faults.bench import Bench, delete
from tools.attacks.attacks import ATTACKS, PATIENCE, Attack, restart, single_bytes
from tools.attacks.noise import ITS_IP, QUIET, Case, Wait, changes, quiet, waits
from tools.chaos.cluster import Cluster
from tools.chaos.traffic import REST, Traffic

BETWEEN = 1.0
"""Seconds between two turns of an attack."""
FEWEST = 500
"""Connections that must have been judged: else nothing was tried."""


class Together(NamedTuple):
    """The result: how often each attack was made, connections, waits of the quiet tenant, and the peak in bytes."""

    attacks: Counter[str]
    judged: int
    wrong: list[str]
    waits: list[Wait]
    peak: int


def all_at_once(bench: Bench, noise: Sequence[Case], scale: float, seconds: float) -> Together:
    """Make all attacks beside noise for so long at least, until each was made and enough connections were judged.

    Raises:
        AssertionError: the rules aren't right after them.
    """
    attacks = [each for each in ATTACKS if each.make is not single_bytes]  # it would slow down all other answers
    cluster = Cluster(bench.server, load_config(bench.config_map.path, FIELDS)[0], "attacks")
    cluster.furnish(time.monotonic())
    bench.server.put(objects.service("web", namespace=QUIET, vips=[ITS_IP]), quiet(0)[1])
    bench.wait_until_right(PATIENCE)
    cluster.histories.settled(time.monotonic())
    made = Counter[str]()
    traffic = Traffic(bench.lab, cluster, "attacks", lambda _: None)
    with ExitStack() as stack:
        kernel = stack.enter_context(bench.lab.node.call(ElementLookup))
        for case in noise:
            bench.server.put(*case.start())
            stack.enter_context(repeating(changes(bench.server, case), case.pause))
        for attack in attacks:
            stack.enter_context(repeating(partial(_again, bench, attack, scale, made), BETWEEN))
        stack.enter_context(repeating(traffic.try_some, REST))
        end = time.monotonic() + seconds

        def is_over() -> bool:
            return time.monotonic() >= end and len(made) == len(attacks) and traffic.judged >= FEWEST

        found = list(waits(bench.server, kernel, bench, is_over))
        peak = bench.peak
    restart(bench)
    bench.wait_until_right(PATIENCE)
    return Together(made, traffic.judged, traffic.wrong, found, max(peak, bench.peak))


def _again(bench: Bench, attack: Attack, scale: float, made: Counter[str]) -> None:
    """Remove what an attack has left, and make it again."""
    left = [each | {"kind": kind} for kind in ("Service", "EndpointSlice") for each in bench.server.objects(kind)]
    delete(bench.server, [each for each in left if each["metadata"]["namespace"] == attack.namespace])
    attack.make(bench, scale)
    made[attack.make.__name__] += 1
