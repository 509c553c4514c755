"""Counters of iptables are read by their names, in this network namespace alone."""

from __future__ import annotations

import pytest

from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.kernel.others.nfacct import NAME, NEW, PACKETS, SUBSYSTEM, packets
from nftproxy.netlink.codec import ACKNOWLEDGE, CREATE, attribute, messages_of, named, request
from tests.conftest import Run


def make(name: str, count: int) -> None:
    """Make a counter of `count` packets."""
    attributes = named(NAME, name) + attribute(PACKETS, count.to_bytes(8, "big"))
    with open_socket() as kernel:
        kernel.sendto(request(SUBSYSTEM, NEW, ACKNOWLEDGE | CREATE, 0, attributes), (0, 0))
        list(messages_of(kernel.recv(4096)))


@pytest.mark.usefixtures("namespace")
def test_counters_by_name() -> None:
    """Each of many counters is read with its packets.  A new namespace has none."""
    assert packets() == {}
    expected = {f"counter-{number}": number * 2**33 for number in range(1000)}
    for name, count in expected.items():
        make(name, count)
    assert packets() == expected


def test_without_permission_that_is_said(as_nobody: Run) -> None:
    """Without permission the error says so."""
    code = (
        "from nftproxy.kernel.others.nfacct import *\n"
        "try: print(packets())\n"
        "except Unavailable as error: print('Unavailable:', error)"
    )
    assert as_nobody(code).startswith("Unavailable: the counters of iptables can't be read")
