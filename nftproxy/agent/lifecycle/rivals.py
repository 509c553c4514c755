"""Rivals for this node's Services: another nftproxy, or another service proxy.

Two agents would undo each other's work in the same tables, so the second waits until the first has ended.  Waiting for
another proxy is no use: its rules stay after its end, and it may be back at any time.  So the agent looks for traces of
other proxies periodically, and log, metric and health name them until they are gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nftproxy.kernel.agent_lock import AgentLock, LockHolder, holder
from nftproxy.kernel.others.other_proxies import CILIUM, KUBE_PROXY, KUBE_ROUTER, Traces, other_proxies
from nftproxy.logs import warn
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable

log = logging.getLogger(__name__)

PAUSE = 0.5
"""Seconds between two tries to get the lock: how long a node may have no agent after the other has ended."""
PERIOD = 30.0
"""Seconds between two searches for other proxies: the default period of the checks of our own tables."""

_ADVICE = {
    KUBE_PROXY: "keep it from this node, then remove its rules: nftproxy cleanup --kube-proxy MODE",
    KUBE_ROUTER: "run it without --run-service-proxy",
    CILIUM: "run it without kubeProxyReplacement",
}


async def until_alone(report: Callable[[str], None]) -> AgentLock | None:
    """Wait for other agents in this network namespace to end.  Return the lock, None if this kernel has none.

    `report` is called with a description of the other agent, and with "" once it has ended.
    """
    lock, known = AgentLock.of_this_process(), None
    try:
        while not lock.acquire():
            await asyncio.sleep(PAUSE)  # a command that looks for the holder has the lock for a moment
            if (found := holder()) and found != known:
                known = found
                report(_described(found))
                warn(
                    Code.OTHER_AGENT,
                    "%(agent)s serves this node already: waiting until it has ended",
                    agent=_described(found),
                )
    except Unavailable as error:
        lock.close()
        warn(Code.NO_LOCK, "going on without a lock: %(error)s", error=error)
        report("")
        return None
    except BaseException:
        lock.close()
        raise
    report("")
    return lock


def _described(found: LockHolder) -> str:
    return f"another nftproxy (process {found.process})" if found.process else "another nftproxy"


async def watch_other_proxies(report: Callable[[Traces], None]) -> None:
    """Call `report` with the traces of other proxies whenever they have changed, until the task is cancelled."""
    known: Traces = {}
    while True:
        try:
            found = await asyncio.to_thread(other_proxies)
        except Unavailable as error:
            warn(Code.PROXY_SEARCH_FAILED, "looking for other proxies failed: %(error)s", error=error)
        else:
            for proxy, traces in found.items():
                if traces != known.get(proxy):
                    warn(Code.OTHER_PROXY, "%(warning)s", warning=in_words(proxy, traces), proxy=proxy, traces=traces)
            for proxy in known.keys() - found.keys():
                log.info("there is no trace of %(proxy)s any more", {"proxy": proxy})
            if found != known:
                report(found)
            known = found
        await asyncio.sleep(PERIOD)


def in_words(proxy: str, traces: list[str]) -> str:
    """Return a sentence about the traces of a proxy, with advice."""
    return f"{proxy} serves Services on this node, or has left rules: found {', '.join(traces)}; {_ADVICE[proxy]}"
