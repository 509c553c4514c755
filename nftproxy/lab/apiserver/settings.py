"""What may be set about a server, at any time: what begins afterwards goes by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Settings:
    """How the server behaves when nothing goes wrong.

    Args:
        version: what `/version` says.
        bookmark_interval: seconds between a watch's bookmarks, None for no bookmarks; real servers take a minute.
        is_idle: nothing else happens in the cluster.  Normally something does, so that revisions grow by themselves
            and every bookmark has a new one; if nothing does, real servers send none.
        watch_timeout: seconds after which a watch ends that doesn't say timeoutSeconds; 1800 to 3600 on real servers.
        expired_watch_has_status: a watch from a version that is too old is answered with the HTTP status 410, and not,
            as by real servers of today, with 200 and an ERROR event.
        pace: how many seconds pass in one, for bookmarks, time-outs of watches and waiting for the future.
        future_wait: seconds for which a list of a version that is yet to come waits for it.
        service_cidrs: where ClusterIPs are allocated from, one range for each family, the first one first.
        node_ports: the first and the last port that is allocated as a node port.
        gzip_threshold: bytes of a body above which it is compressed for who asks, None for never.
    """

    version: str = "v1.35.0"
    bookmark_interval: float | None = 60.0
    is_idle: bool = False
    watch_timeout: float = 1800.0
    expired_watch_has_status: bool = False
    pace: float = 1.0
    future_wait: float = 3.0  # k8s.io/apiserver, storage/cacher (blockTimeout)
    service_cidrs: tuple[str, ...] = ("10.96.0.0/16", "fd00:96::/112")
    node_ports: tuple[int, int] = (30000, 32767)  # kube-apiserver --service-node-port-range
    gzip_threshold: int | None = 128 * 1024  # k8s.io/apiserver, endpoints/handlers/responsewriters
