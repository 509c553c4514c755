"""The settings of a server, which may change at any time.  Later requests use the new values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Settings:
    """The behaviour of the server apart from faults.

    Args:
        version: the version at `/version`.  versions.py has the features that it brings.
        bookmark_interval: seconds between a watch's bookmarks, None for no bookmarks.  Real servers take a minute.
        is_idle: nothing else happens in the cluster.  Normally revisions grow by themselves, so that every bookmark has
            a new revision.  In an idle cluster real servers send no bookmarks.
        watch_timeout: seconds until a watch without timeoutSeconds ends.  1800 to 3600 on real servers.
        expired_watch_has_status: whether a watch from an expired version is answered with the HTTP status 410.  Present
            servers answer with 200 and an ERROR event.
        pace: simulated seconds in a second, for bookmarks, timeouts of watches and waits for future versions.
        future_wait: seconds for which a list waits for a future version.
        service_cidrs: the ranges of ClusterIPs, one for each family, the preferred range first.
        node_ports: the first and the last node port.
        gzip_threshold: the size in bytes above which bodies are compressed for clients that accept it, None for never.
        piece: the bytes of a body that are written at once, so that a large list holds up nobody else.
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
    piece: int = 256 * 1024
    gzip_threshold: int | None = 128 * 1024  # k8s.io/apiserver, endpoints/handlers/responsewriters
