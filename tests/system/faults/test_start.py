"""An agent that can't load its rules yet says so, and what it waits for, to whoever asks."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest

from nftproxy.kernel import netlink
from nftproxy.lab import Origin, endpoint
from nftproxy.lab.apiserver import ApiServer
from tests.system.faults.bench import PERMISSIONS, Bench, endpoints, pod, service, vip


@pytest.fixture
def stopped(bench: Bench) -> Iterator[Bench]:
    """The agent's bench, without an agent; at the end it runs again and may do everything."""
    bench.stop()
    yield bench
    bench.server.rbac = PERMISSIONS
    bench.wait_until_right(60)


def without(plural: str) -> list[tuple[str, str, str]]:
    """The agent's permissions except for one resource."""
    return [each for each in PERMISSIONS if each[1] != plural]


def test_an_agent_that_may_not_list_endpoints(stopped: Bench, server: ApiServer) -> None:
    """It isn't ready, and answers, metrics and the log name what is missing; it is alive, and ready once it may."""
    server.rbac = without("endpointslices")
    known = stopped.log().count("no rules are loaded yet")
    stopped.start()
    stopped.wait_until(lambda: stopped.log().count("no rules are loaded yet") > known, 60)
    for path, status in (("/healthz", 503), ("/livez", 200)):
        reply = stopped.ask(path, 10256)
        body = json.loads(reply.body)
        assert (reply.status, body["healthy"]) == (status, False)
        assert body["waitingFor"][0] == "the first listing of endpointslices"
    assert stopped.metric('nftproxy_waiting{for="the first listing of endpointslices"}') == 1
    assert "no rules are loaded yet: waiting for the first listing of endpointslices\n" in stopped.log()
    assert stopped.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080), "the rules of before stay"
    server.rbac = PERMISSIONS
    stopped.wait_until(lambda: stopped.healthz().status == 200, 60)
    assert "waitingFor" not in json.loads(stopped.healthz().body)
    assert stopped.metric('nftproxy_waiting{for="the first listing of endpointslices"}') == 0


def test_an_agent_that_may_not_list_service_cidrs(stopped: Bench, server: ApiServer) -> None:
    """It goes on without them, is ready, and follows all else."""
    server.rbac = without("servicecidrs")
    stopped.start()
    stopped.wait_until(lambda: "servicecidrs: may not be listed: going on without them" in stopped.log(), 60)
    server.put(service(95), endpoints(95))
    stopped.wait_until(lambda: stopped.lab.connect(Origin.POD, vip(95), 80) == endpoint(pod(95), 8080), 60)
    stopped.wait_until(lambda: stopped.healthz().status == 200, 60)


# ---- what libnftables dies of ----------------------------------------------------------------------------------------

NEW_TABLE, DELETE_TABLE, NEW_SET, BATCH_BEGIN, BATCH_END = 0, 2, 9, 0x10, 0x11  # NFT_MSG_*, NFNL_MSG_BATCH_*
CREATE = 0x400  # NLM_F_CREATE
IPV4_ADDR = 7  # nft's number of the type
VALUE = 4  # nft's number of a kind of expression that 1.0.6 can't read as a `typeof`, and calls nothing by


def command(kind: int, attributes: bytes, *, resource: int = 0) -> bytes:
    """A message of a batch."""
    body = netlink.GENERAL.pack(2 if attributes else 0, 0, socket.htons(resource)) + attributes
    return netlink.HEADER.pack(netlink.HEADER.size + len(body), kind, 1 | (CREATE if attributes else 0), 0, 0) + body


def named(kind: int, name: str) -> bytes:
    """An attribute with a name."""
    return netlink.attribute(kind, name.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """An attribute with a number."""
    return netlink.attribute(kind, struct.pack("!I", value))


def make_a_table_of_a_newer_nft() -> None:
    """Make the table `ip theirs` with a set as a newer nft declares it (what it notes for itself is `userdata`)."""
    typeof = bytes([0, 4]) + struct.pack("=I", VALUE) + bytes([1, 0])
    parts = [named(1, "theirs"), named(2, "s"), number(3, 0), number(4, IPV4_ADDR), number(5, 4), number(10, 1)]
    userdata = netlink.attribute(13, bytes([3, len(typeof)]) + typeof)
    table = command(10 << 8 | NEW_TABLE, named(1, "theirs"))
    commit(table, command(10 << 8 | NEW_SET, b"".join(parts) + userdata))


def delete_it() -> None:
    """Delete that table, which `nft delete` dies of too."""
    commit(command(10 << 8 | DELETE_TABLE, named(1, "theirs")))


def commit(*commands: bytes) -> None:
    """Send commands as one transaction."""
    batch = command(BATCH_BEGIN, b"", resource=10), *commands, command(BATCH_END, b"", resource=10)
    with netlink.open_socket() as kernel:
        kernel.sendto(b"".join(batch), (0, 0))


def test_a_table_that_libnftables_dies_of(stopped: Bench) -> None:
    """The agent lives, names the likely cause, isn't ready, and loads its rules once the table is gone."""
    stopped.lab.node.call(make_a_table_of_a_newer_nft)
    listing = stopped.lab.node.popen(["nft", "list", "ruleset"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    is_deadly = listing.wait(30) != 0
    try:
        if not is_deadly:
            pytest.skip("this version of nft reads what this test has made")
        known = stopped.log().count("was killed by SIGSEGV")
        stopped.start()
        stopped.wait_until(lambda: stopped.log().count("was killed by SIGSEGV") > known + 2, 60)
        assert "most likely a table that a newer nft has made" in stopped.log()
        assert stopped.healthz().status == 503
        assert "the first load of IPv4" in json.loads(stopped.healthz().body)["waitingFor"]
        assert stopped.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080), "the rules of before stay"
    finally:
        stopped.lab.node.call(delete_it)
        if not is_deadly:
            stopped.start()
