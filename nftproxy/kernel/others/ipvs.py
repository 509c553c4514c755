"""The kernel's IPVS, which kube-proxy balances with in its ipvs mode: how its virtual servers choose."""

from __future__ import annotations

from pathlib import Path

from pyroute2 import IPVS, NetlinkError

from nftproxy.model.errors import Unavailable

IPVS_IN_KERNEL = Path("/proc/net/ip_vs")  # once its module is loaded


def schedulers() -> list[str]:
    """Return the scheduler of each virtual server, none in a kernel without IPVS.

    Raises:
        Unavailable: the kernel doesn't answer.
    """
    if not IPVS_IN_KERNEL.exists():
        return []
    try:
        with IPVS() as ipvs:
            servers = [message.get_attr("IPVS_CMD_ATTR_SERVICE") for message in ipvs.service("dump")]
    except (NetlinkError, OSError) as error:
        raise Unavailable(f"IPVS: {error}") from error
    return [str(server.get_attr("IPVS_SVC_ATTR_SCHED_NAME")) for server in servers]
