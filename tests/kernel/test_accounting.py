"""Counters of iptables are read by their names, in this network namespace alone."""

from __future__ import annotations

import pytest

from nftproxy.kernel.accounting import NAME, NEW, PACKETS, SUBSYSTEM, packets
from nftproxy.kernel.netlink import ACKNOWLEDGE, attribute, messages_of, open_socket, request
from tests.conftest import Run

CREATE = 0x400  # NLM_F_CREATE


def make(name: str, count: int) -> None:
    """Make a counter that has met so many packets."""
    attributes = attribute(NAME, name.encode() + b"\0") + attribute(PACKETS, count.to_bytes(8, "big"))
    with open_socket() as kernel:
        kernel.sendto(request(SUBSYSTEM, NEW, ACKNOWLEDGE | CREATE, 0, attributes), (0, 0))
        list(messages_of(kernel.recv(4096)))


@pytest.mark.usefixtures("namespace")
def test_counters_by_name() -> None:
    """Each counter is there with its packets, however many there are; a new namespace has none."""
    assert packets() == {}
    expected = {f"counter-{number}": number * 2**33 for number in range(1000)}
    for name, count in expected.items():
        make(name, count)
    assert packets() == expected


def test_without_permission_that_is_said(as_nobody: Run) -> None:
    """Who may not ask the kernel gets the error for that."""
    code = (
        "from nftproxy.kernel.accounting import *\n"
        "try: print(packets())\n"
        "except Unavailable as error: print('Unavailable:', error)"
    )
    assert as_nobody(code).startswith("Unavailable: the counters of iptables can't be read")
