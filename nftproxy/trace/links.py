"""Interfaces and addresses that work from the moment they are there.

The kernel reports success before a link or an IPv6 address works.  An interface whose peer comes up later sends nothing
until the kernel's link watch has run.  An IPv6 address receives nothing before its local route exists, even without
duplicate address detection.  Both happen in work queues, a moment later, and this module waits for them.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nftproxy.kernel.namespace import NetworkNamespace
from nftproxy.model.errors import Unavailable

SIOCGIFFLAGS, IFF_RUNNING = 0x8913, 0x40  # linux/sockios.h, linux/if.h
RTF_LOCAL = 0x80000000  # linux/ipv6_route.h
PATIENCE = 60.0  # seconds: the kernel's own work waits for a lock that all namespaces share


def join(
    near: NetworkNamespace, near_name: str, far: NetworkNamespace, far_name: str, *, macs: tuple[str, str] | None = None
) -> None:
    """Join two namespaces by a veth pair, up at both ends.

    Args:
        near: a namespace.
        near_name: the name of its interface.
        far: the other namespace.
        far_name: the name of its interface.
        macs: hardware addresses of both ends.  With them neither end resolves neighbours (no ARP) or has a link-local
            address.  Outgoing frames then carry the interface's own address as their destination too.

    Raises:
        Unavailable: the names are taken or too long, or the link doesn't come up.
    """
    mac, far_mac = (f"address {mac}" for mac in macs) if macs else ("", "")
    quiet = "arp off addrgenmode none" if macs else ""
    near.ip(
        f"link add name {near_name} {mac} type veth peer name {far_name} {far_mac} netns {far.path}",
        f"link set dev {near_name} up {quiet}",
    )
    far.ip(f"link set dev {far_name} up {quiet}")
    # The far end found its peer up, so it can send.  The near end came up alone and depends on the link watch.
    with near.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _wait(partial(_is_running, any_socket, near_name), f"{near_name} comes up")
    near.ip(f"link set dev {near_name} up")  # again, to wait for the lock of the link watch


def add_addresses(namespace: NetworkNamespace, interface: str, *addresses: str, options: str = "") -> None:
    """Give an interface addresses, with or without prefix lengths, and wait until they work.

    Args:
        namespace: where the interface is.
        interface: its name.
        addresses: of either family.
        options: more arguments of `ip address add` for IPv6 addresses.

    Raises:
        Unavailable: the kernel refuses an address.
    """
    namespace.ip(
        *(f"address add {each} dev {interface}{f' nodad {options}' if ':' in each else ''}" for each in addresses)
    )
    for each in addresses:
        if ":" in each:
            address = ipaddress.IPv6Interface(each).ip
            _wait(partial(namespace.call, _is_local, address), f"{address} is usable")


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Unavailable(f"waited {PATIENCE} s until {what}")
        time.sleep(0.0005)


def _is_running(any_socket: socket.socket, interface: str) -> bool:
    request = struct.pack("16sh14x", interface.encode(), 0)  # struct ifreq
    (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request), 16)
    return bool(flags & IFF_RUNNING)


def _is_local(address: ipaddress.IPv6Address) -> bool:
    """True if the calling thread's namespace delivers packets to the address."""
    wanted = address.packed.hex()
    for line in Path("/proc/thread-self/net/ipv6_route").read_text(encoding="ascii").splitlines():
        columns = line.split()  # destination, its prefix length, ..., flags, interface
        if columns[0] == wanted and columns[1] == "80" and int(columns[8], 16) & RTF_LOCAL:
            return True
    return False
