"""Tables that crash libnftables when it reads them.

A newer nft notes in a set's `userdata` of which kind of expression its type is.  An older libnftables calls a null
pointer if it has no parser for that kind.
"""

from __future__ import annotations

import struct
import subprocess

from nftproxy.kernel.nfnetlink.sockets import BUFFER_SIZE, open_socket
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import CREATE, attribute, messages_of, named

DEADLY = {"value": 4, "verdict": 2}
"""nft's numbers of kinds of expressions.  1.0.6 dies of both, 1.1.3 of `verdict`."""

THEIRS = "theirs"
DELETE_TABLE = 2  # NFT_MSG_DELTABLE
IP, IPV4_ADDR = 2, 7  # NFPROTO_IPV4, and nft's number of the type
SET_USERDATA, TYPEOF = 13, 3  # NFTA_SET_USERDATA, NFTNL_UDATA_SET_KEY_TYPEOF
TYPEOF_KIND, TYPEOF_DATA = 0, 1  # NFTNL_UDATA_SET_TYPEOF_*


def make_deadly_table(kind: int, table: str = THEIRS) -> None:
    """Make an IPv4 table with a set of such a kind, or add the set to the table."""
    typeof = bytes([TYPEOF_KIND, 4]) + struct.pack("=I", kind) + bytes([TYPEOF_DATA, 0])
    attributes = [
        named(nft.OF_TABLE, table),
        named(nft.SET_NAME, "deadly"),
        number(nft.SET_FLAGS, 0),
        number(nft.SET_KEY_TYPE, IPV4_ADDR),
        number(nft.SET_KEY_LENGTH, 4),
        number(nft.SET_ID, 1),
        attribute(SET_USERDATA, bytes([TYPEOF, len(typeof)]) + typeof),
    ]
    commit(
        nft.request(nft.NEW_TABLE, CREATE, IP, named(nft.OF_TABLE, table)),
        nft.request(nft.NEW_SET, CREATE, IP, b"".join(attributes)),
    )


def delete_table(table: str = THEIRS) -> None:
    """Delete an IPv4 table without libnftables, as `nft delete` would crash too."""
    commit(nft.request(DELETE_TABLE, 0, IP, named(nft.OF_TABLE, table)))


def is_deadly() -> bool:
    """True if nft crashes in this namespace."""
    listing = subprocess.run(["nft", "list", "ruleset"], capture_output=True, timeout=60, check=False)
    return listing.returncode < 0


def commit(*commands: bytes) -> None:
    """Send commands as a single transaction."""
    with open_socket() as kernel:
        kernel.sendto(nft.batch(commands), (0, 0))
        list(messages_of(kernel.recv(BUFFER_SIZE)))


def number(kind: int, value: int) -> bytes:
    """An attribute with a number."""
    return attribute(kind, struct.pack("!I", value))
