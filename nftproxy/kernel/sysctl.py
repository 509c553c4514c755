"""Kernel settings of the node that the configuration asks for, and this process's own oom_score_adj.

These are kube-proxy's settings, by the same rules (cmd/kube-proxy/app/server_linux.go and conntrack.go).  A setting
that can't be made, as in a container whose /proc/sys is read-only, is a warning and not fatal.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from nftproxy.kernel.libnftables import check_text
from nftproxy.logs import warn
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.settings import Config

log = logging.getLogger(__name__)

NETWORK = "/proc/sys/net"
NETFILTER = f"{NETWORK}/netfilter"
CONNTRACK_MAX = f"{NETFILTER}/nf_conntrack_max"
CONNTRACK_ENTRIES, CONNTRACK_LIMIT = "netfilter/nf_conntrack_count", "netfilter/nf_conntrack_max"
"""The fill of connection tracking, for `read_all`."""
FORWARDING: Mapping[Family, str] = MappingProxyType(
    {Family.IPV4: "ipv4/ip_forward", Family.IPV6: "ipv6/conf/all/forwarding"}
)
"""1 if the node forwards packets of the family, for `read_all`."""
HASH_SIZE = f"{NETFILTER}/nf_conntrack_buckets"
"""The hash size.  kube-proxy writes /sys/module/nf_conntrack/parameters/hashsize, which only root can even read."""
OOM_SCORE_ADJ = "/proc/self/oom_score_adj"

_TRACKING = """\
table ip nftproxy-conntrack {
  chain c {
    type filter hook forward priority 0
    ct state new accept
  }
}
"""

ENTRIES_PER_BUCKET = 4  # kube-proxy's, and once the kernel's own proportion of nf_conntrack_max to the hash size

ONLY_RAISED = frozenset({CONNTRACK_MAX, HASH_SIZE})
"""A larger value of these settings is kept: an administrator chose it (k/k#142035)."""
ONLY_WISHED = frozenset({OOM_SCORE_ADJ})
"""Failures to set these aren't warnings.  A container may not lower its score, which the kubelet has set (kube-proxy
logs this at verbosity 2)."""


def wanted(config: Config, cores: int) -> dict[str, int]:
    """Return the settings that the configuration asks for, by path.  `cores` are the machine's.

    Timeouts are whole seconds, at least 1.  Settings that are 0 or false in the configuration are left out.  A canary
    leaves the node's settings to the other proxy.
    """
    own = {OOM_SCORE_ADJ: config.oom_score_adj}
    if config.is_canary:
        return own
    conntrack = config.conntrack
    most = max(conntrack.min, conntrack.max_per_core * cores) if conntrack.max_per_core else 0
    timeouts = {
        "tcp_timeout_established": conntrack.tcp_established_timeout,
        "tcp_timeout_close_wait": conntrack.tcp_close_wait_timeout,
        "udp_timeout": conntrack.udp_timeout,
        "udp_timeout_stream": conntrack.udp_stream_timeout,
    }
    found = {CONNTRACK_MAX: most, HASH_SIZE: most // ENTRIES_PER_BUCKET}
    found |= {_conntrack(name): max(1, int(seconds)) for name, seconds in timeouts.items() if seconds}
    found[_conntrack("tcp_be_liberal")] = int(conntrack.tcp_be_liberal)
    return {path: value for path, value in found.items() if value} | own


def set_up(config: Config) -> None:
    """Make the settings that the configuration asks for, on this machine."""
    apply(wanted(config, os.cpu_count() or 1))


def set_up_node(config: Config) -> None:
    """Set the node's sysctls, for `run --init-only`.  Log if there are none to set."""
    settings = {path: value for path, value in wanted(config, os.cpu_count() or 1).items() if path != OOM_SCORE_ADJ}
    if not settings:
        log.info("the configuration asks for no sysctl: there is nothing to set")
        return
    load_conntrack()
    apply(settings)


def load_conntrack() -> None:
    """Try a rule of connection tracking, without loading the rule.

    On a node that has just started, nothing may have used connection tracking yet.  To take the rule, the kernel loads
    its module, which has the settings.
    """
    try:
        check_text(_TRACKING)
    except (Refused, Unavailable) as error:
        log.info("connection tracking can't be tried: %(error)s", {"error": error})


def read_all(paths: Iterable[str]) -> dict[str, int]:
    """Return the existing settings below /proc/sys/net in this thread's network namespace, by their paths below it."""
    found = {}
    for path in paths:
        try:
            found[path] = int(Path(NETWORK, path).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue  # this kernel doesn't have it, or its module isn't loaded
    return found


def _conntrack(name: str) -> str:
    return f"{NETFILTER}/nf_conntrack_{name}"


def apply(settings: Mapping[str, int]) -> None:
    """Make the settings that differ, in this thread's network namespace.  Log each failure.

    conntrack's settings exist once its module is loaded, by rules that use it.
    """
    for path, value in settings.items():
        try:
            _set(Path(path), value)
        except (OSError, ValueError) as error:
            warn(
                Code.SYSCTL_FAILED,
                "%(path)s can't be set to %(value)d: %(error)s",
                level=logging.INFO if path in ONLY_WISHED else logging.WARNING,
                path=path,
                value=value,
                error=getattr(error, "strerror", None) or error,
            )


def _set(path: Path, value: int) -> None:
    present = int(path.read_text(encoding="ascii"))
    if present == value or (str(path) in ONLY_RAISED and present > value):
        return
    path.write_text(f"{value}\n", encoding="ascii")
    log.info("set %(path)s to %(value)d, from %(before)d", {"path": path, "value": value, "before": present})
