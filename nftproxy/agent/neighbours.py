"""Who else looks after this node's Services: another nftproxy, or another service proxy.

Two agents would undo each other's work in the same tables, so the second waits until the first has ended.  For another
proxy nobody can wait: what it has left stays, and it may be back at any time.  That is looked for at start and from
then on, and log, metric and health name what is found, until it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nftproxy.kernel.agent_lock import AgentLock, holder
from nftproxy.kernel.other_proxies import CILIUM, KUBE_PROXY, KUBE_ROUTER, Traces, other_proxies
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable

log = logging.getLogger(__name__)

PAUSE = 0.5
"""Seconds between two tries to be the only agent: how long a node may have none after the other has ended."""
PERIOD = 30.0
"""Seconds between two looks for other proxies, as long as between two checks of our own tables by default."""

_ADVICE = {
    KUBE_PROXY: "keep it from this node, then remove what it left: nftproxy cleanup --kube-proxy MODE",
    KUBE_ROUTER: "run it without --run-service-proxy",
    CILIUM: "run it without kubeProxyReplacement",
}


async def until_alone() -> AgentLock | None:
    """Wait for other agents in this network namespace to end; None if somebody has the lock who can't be an agent."""
    lock, known = AgentLock(), None
    try:
        while not lock.acquire():
            found = holder()
            if found and not found.is_trusted:
                log.error(
                    "user %(user)d has taken the name by which agents find each other: going on",
                    found._asdict(),
                    extra={"code": Code.LOCK_NAME_TAKEN},
                )
                lock.close()
                return None
            if found and found != known:
                known = found
                log.warning(
                    "another nftproxy (process %(process)d) looks after this node: waiting until it has ended",
                    found._asdict(),
                    extra={"code": Code.OTHER_AGENT},
                )
            await asyncio.sleep(PAUSE)
    except BaseException:
        lock.close()
        raise
    return lock


async def watch_other_proxies(report: Callable[[Traces], None]) -> None:
    """Call `report` with the traces of other proxies whenever these have changed; ends only with the task."""
    known: Traces = {}
    while True:
        try:
            found = await asyncio.to_thread(other_proxies)
        except Unavailable as error:
            log.warning(
                "looking for other proxies failed: %(error)s",
                {"error": error},
                extra={"code": Code.PROXY_SEARCH_FAILED},
            )
        else:
            for proxy, traces in found.items():
                if traces != known.get(proxy):
                    log.warning(
                        "%(warning)s",
                        {"warning": in_words(proxy, traces), "proxy": proxy, "traces": traces},
                        extra={"code": Code.OTHER_PROXY},
                    )
            for proxy in known.keys() - found.keys():
                log.info("there is no trace of %(proxy)s any more", {"proxy": proxy})
            if found != known:
                report(found)
            known = found
        await asyncio.sleep(PERIOD)


def in_words(proxy: str, traces: list[str]) -> str:
    """What to say of a proxy of which there are traces, and what to do about it."""
    return f"{proxy} serves Services on this node, or has: there is {', '.join(traces)}; {_ADVICE[proxy]}"
