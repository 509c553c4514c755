"""Interfaces and addresses that work from the moment they are there.

The kernel says it has set up a link or an IPv6 address before it has: an interface whose peer comes up after it sends
nothing until the kernel's link watch has run, and an IPv6 address is not delivered to before its local route is there,
even without duplicate address detection.  Both happen in work queues, a moment later.  This module waits for that
moment.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nftproxy.lab.namespace import LabError, Namespace

SIOCGIFFLAGS, IFF_RUNNING = 0x8913, 0x40  # linux/sockios.h, linux/if.h
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/socket.h, linux/if_packet.h
ETH_P_ALL = 3  # linux/if_ether.h
RTF_LOCAL = 0x80000000  # linux/ipv6_route.h
PATIENCE = 5.0  # seconds


def join(
    near: Namespace, near_name: str, far: Namespace, far_name: str, *, macs: tuple[str, str] | None = None
) -> None:
    """Join two namespaces by a veth pair, up at both ends.

    Args:
        near: one namespace.
        near_name: what the interface is called in it.
        far: the other.
        far_name: what it is called there.
        macs: hardware addresses of both.  With them neither end asks for neighbours (no ARP), nor has a link-local
            address; whatever leaves carries the interface's own address as its destination too.

    Raises:
        LabError: the names are taken or too long, or the link doesn't come up.
    """
    mac, far_mac = (f"address {mac}" for mac in macs) if macs else ("", "")
    quiet = "arp off addrgenmode none" if macs else ""
    near.ip(
        f"link add name {near_name} {mac} type veth peer name {far_name} {far_mac} netns {far.path}",
        f"link set dev {near_name} up {quiet}",
    )
    far.ip(f"link set dev {far_name} up {quiet}")
    # The far end found its peer up, and can send.  The near end came up alone, and depends on the link watch.
    with near.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _wait(partial(_is_running, any_socket, near_name), f"{near_name} comes up")
    near.ip(f"link set dev {near_name} up")  # again: waits for the lock under which the link watch finishes


def join_with_delay(near: Namespace, near_name: str, far: Namespace, far_name: str, delay: float) -> Namespace:
    """Join two namespaces as `join`, but so that what `far` sends by TCP takes `delay` seconds more.

    Few machines that run tests have the kernel's netem.  So the link is two, with a namespace and a process between
    them (delay.py).

    Returns:
        What is between them, which the caller closes; the link ends with it.

    Raises:
        LabError: the names are taken or too long, or the links don't come up.
    """
    between = Namespace(f"between {near_name} and {far_name}")
    try:
        between.sysctl({"ipv6/conf/default/disable_ipv6": "1"})
        join(near, near_name, between, "near")
        join(between, "far", far, far_name)
        with _raw(between, "near") as one, _raw(between, "far") as other:
            ends = one.fileno(), other.fileno()
            command = [sys.executable, "-m", "nftproxy.lab.delay", *map(str, ends), str(delay)]
            between.popen(command, pass_fds=ends)
    except BaseException:
        between.close()
        raise
    return between


def _raw(namespace: Namespace, interface: str) -> socket.socket:
    """All frames that arrive, with what the sender left for its hardware to do: checksums and segments."""
    end = namespace.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # 0: nothing, until it is bound
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.bind((interface, ETH_P_ALL))
    return end


def add_addresses(namespace: Namespace, interface: str, *addresses: str, options: str = "") -> None:
    """Give an interface addresses, each alone or with a prefix length, and wait until they are in use.

    Args:
        namespace: where the interface is.
        interface: its name.
        addresses: of either family.
        options: what else `ip address add` is to know of IPv6 addresses.

    Raises:
        LabError: the kernel refuses one.
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
            raise LabError(f"waited {PATIENCE} s until {what}")
        time.sleep(0.0005)


def _is_running(any_socket: socket.socket, interface: str) -> bool:
    request = struct.pack("16sh14x", interface.encode(), 0)  # struct ifreq
    (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request), 16)
    return bool(flags & IFF_RUNNING)


def _is_local(address: ipaddress.IPv6Address) -> bool:
    """Whether the calling thread's namespace delivers to the address."""
    wanted = address.packed.hex()
    for line in Path("/proc/thread-self/net/ipv6_route").read_text(encoding="ascii").splitlines():
        columns = line.split()  # destination, its prefix length, ..., flags, interface
        if columns[0] == wanted and columns[1] == "80" and int(columns[8], 16) & RTF_LOCAL:
            return True
    return False
