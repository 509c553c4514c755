"""Watches that nobody is told "well" for long while connections go wrong.

`nftproxy status` and /healthz are asked all the time.  A connection is *suspect* if the present objects don't explain
its outcome.  The agent was *blind* if neither the objects nor the damage of the last `BLIND` seconds explain it, and
either verdict was "well" all the time meanwhile.  docs/reliability.md promises that this doesn't happen.

A busy machine delays the agent.  So `BLIND` is extended by the time for which the agent's threads, and a thread of this
process with its API server, have waited for a processor, and by the delay of a control that only sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from nftproxy_conformance.lab import Outcome, Probe

from nftproxy.agent.socket.answers import AgentState
from nftproxy.commands.agent_client import AgentClient, NoAnswer
from tools.chaos.agent import ChaosAgent
from tools.chaos.cluster import KEPT, Cluster

BLIND = 6.0
"""Seconds within which a change, damage or silence must be in the kernel or in the verdicts: the two minutes of
docs/reliability.md, with the pauses and timeouts of tests/system/faults/hasty.py."""
LATE = 1.0
"""Seconds after which a verdict comes too late to be believed: it may be of a process that was stopped meanwhile."""
TURN = 0.01
"""Seconds for which the control sleeps.  It adds all further seconds to the delays."""
PAUSE = 0.2
"""Seconds between two samples: asking must not keep the agent busy."""


class Sample(NamedTuple):
    """A verdict, the time of its answer, and the sum of all delays until then."""

    at: float
    is_well: bool
    delays: float


class Suspect(NamedTuple):
    """A connection that the present objects don't explain: its Service's number, and its time."""

    number: int
    probe: Probe
    outcome: Outcome
    began: float
    ended: float


class Watcher:
    """Takes samples of the verdicts, and judges suspects by them.  For several threads.

    Args:
        agent: it is asked.
        cluster: its past says which outcomes its objects explain.
        harms: returns the times at which a fault has damaged the rules.

    Attributes:
        asked: the number of samples, of which `well` were well.
        blind: a sentence for each connection that went wrong while the agent was blind.
    """

    def __init__(self, agent: ChaosAgent, cluster: Cluster, harms: Callable[[], list[float]]) -> None:
        self.asked = self.well = 0
        self.blind: list[str] = []
        self._agent = agent
        self._cluster = cluster
        self._harms = harms
        self._delays = Delays()
        self._samples: deque[Sample] = deque()
        self._suspects: deque[Suspect] = deque()
        self._lock = threading.Lock()

    def suspect(self, suspect: Suspect) -> None:
        """Add a connection that is judged once the verdict after it is known."""
        with self._lock:
            self._suspects.append(suspect)

    def sample(self) -> None:
        """Ask for a verdict, and judge the connections before it."""
        asked = time.monotonic()
        is_well = says_well(self._agent) and time.monotonic() - asked < LATE
        self.asked += 1
        self.well += is_well
        self._samples.append(Sample(time.monotonic(), is_well, self._delays.measure(self._agent)))
        while self._samples[0].at < asked - KEPT:
            self._samples.popleft()
        with self._lock:
            before = [each for each in self._suspects if each.ended < asked]
            self._suspects = deque(each for each in self._suspects if each.ended >= asked)
        self.blind += filter(None, map(self._judged, before))

    def _judged(self, suspect: Suspect) -> str:
        """Return a sentence if the agent was blind when a connection was tried, else ""."""
        since = blind_since(self._samples, suspect.began, BLIND)
        if since is None or any(since <= harm <= suspect.ended for harm in self._harms()):
            return ""
        if suspect.outcome in self._cluster.explained(suspect.number, suspect.probe, since, suspect.ended):
            return ""
        seconds = suspect.began - since
        return f"{suspect.probe} became {suspect.outcome}, and the verdict had been well for {seconds:.1f} s"


def blind_since(samples: deque[Sample], moment: float, seconds: float) -> float | None:
    """Return the time at which a blindness of so many seconds, and all delays, would have begun before a moment.

    None if the verdict wasn't well in some sample since then, or in the first sample after the moment.
    """
    later = next((each for each in samples if each.at >= moment), None)
    if later is None or not later.is_well:
        return None
    for earlier in reversed([each for each in samples if each.at < moment]):
        if not earlier.is_well:
            return None
        if moment - earlier.at >= seconds + later.delays - earlier.delays:
            return earlier.at
    return None


def says_well(agent: ChaosAgent) -> bool:
    """Return whether `status` or /healthz says that all is well, and warns of nothing."""
    try:
        status = AgentClient(str(agent.socket_path), LATE).get(AgentState, "/v1/status")
        if status.is_healthy and status.is_eligible and not status.warnings and not status.caveat:
            return True
        health = agent.healthz()
        return health.status == 200 and "warnings" not in json.loads(health.body)
    except (NoAnswer, OSError, HTTPException, ValueError):
        return False


class Delays:
    """The seconds for which the machine has delayed the agent and this process, since the first measurement."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._waited: dict[int, dict[str, float]] = {}

    def measure(self, agent: ChaosAgent) -> float:
        """Return the sum of all delays so far.  The control sleeps for `TURN` seconds."""
        began = time.monotonic()
        time.sleep(TURN)
        self._sum += time.monotonic() - began - TURN
        own, agents = self._more(os.getpid()), [] if agent.pid is None else self._more(agent.pid)
        self._sum += max(own, default=0.0) + sum(agents)
        return self._sum

    def _more(self, process: int) -> list[float]:
        """Return the seconds for which each thread of a process has waited since the last measurement."""
        now = waited(process)
        before, self._waited[process] = self._waited.get(process, now), now
        return [each - before.get(thread, 0.0) for thread, each in now.items()]


def waited(process: int) -> dict[str, float]:
    """Return the seconds for which each thread of a process has waited for a processor, none if it isn't there."""
    found = {}
    for each in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            found[each.parent.name] = int(each.read_text().split()[1]) / 1e9
    return found
