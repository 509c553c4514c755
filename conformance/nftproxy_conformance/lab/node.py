"""A scratch node: a namespace with the kernel settings of a Kubernetes node, and rules by way of libnftables."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path

from nftproxy.trace.node import NODE_SYSCTLS
from nftproxy_conformance.lab.namespace import LabError, Namespace


class Node(Namespace):
    """A namespace that forwards, and into which rules can be loaded.

    Args:
        name: the node's name.

    Raises:
        Unavailable: no namespace can be made.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        try:
            self.sysctl(NODE_SYSCTLS)
            self.ip("link set lo up")
        except BaseException:
            self.close()
            raise

    def load(self, text: str) -> str:
        """Apply nft text in one transaction, as `nft -f` would, and return what it prints.

        Raises:
            LabError: libnftables refuses it.  The message has the library's.
        """
        return self.call(self._load, text)

    def _load(self, text: str) -> str:
        library = importlib.import_module("nftables").Nftables()  # opens its socket where it is made: in this thread
        status, output, error = library.cmd(text)
        if status:
            raise LabError(f"{self.name}: the kernel refuses rules: {error}")
        return str(output)

    def reset(self) -> None:
        """Remove all rules, of any program, and all conntrack entries."""
        self.load("flush ruleset")
        self.flush_conntrack()

    def conntrack_room(self) -> int:
        """The most conntrack entries that the machine allows."""
        limit = Path("/proc/sys/net/netfilter/nf_conntrack_max")
        return int(self.call(limit.read_text, encoding="ascii"))

    def source_for(self, address: str) -> str:
        """The source address that the kernel chooses for the node's own connections to `address`.

        Raises:
            LabError: the node has no route there.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, 9))
            except OSError as error:
                raise LabError(f"{self.name} has no way to {address}: {error.strerror}") from error
            return str(probe.getsockname()[0])
