"""An agent that can't load its rules yet names the reason in its answers, metrics and log."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Origin, endpoint

from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.netlink.codec import CREATE, attribute, message, named
from nftproxy.netlink.netfilter import GENERAL
from tests.system.faults.bench import PERMISSIONS, Bench, endpoints, pod, service, vip


@pytest.fixture
def stopped(bench: Bench) -> Iterator[Bench]:
    """The bench without an agent.  At the end the agent runs again with all its permissions."""
    bench.stop()
    yield bench
    bench.server.rbac = PERMISSIONS
    bench.wait_until_right(60)


def without(plural: str) -> list[tuple[str, str, str]]:
    """The agent's permissions without the permissions for a resource."""
    return [each for each in PERMISSIONS if each[1] != plural]


def test_an_agent_that_may_not_list_endpoints(stopped: Bench, server: ApiServer) -> None:
    """The agent is alive and names the missing listing in health, metrics and log, and is ready once it is allowed."""
    server.rbac = without("endpointslices")
    with stopped.logging("no rules are loaded yet: waiting for the first listing of endpointslices\n"):
        stopped.start()
    for path, status in (("/healthz", 503), ("/livez", 200)):
        reply = stopped.ask(path, 10256)
        body = json.loads(reply.body)
        assert (reply.status, body["healthy"]) == (status, False)
        assert body["waitingFor"][0] == "the first listing of endpointslices"
    assert stopped.metric('nftproxy_waiting{for="the first listing of endpointslices"}') == 1
    assert stopped.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080), "the rules of before stay"
    server.rbac = PERMISSIONS
    stopped.wait_until(lambda: stopped.healthz().status == 200, 60)
    assert "waitingFor" not in json.loads(stopped.healthz().body)
    assert stopped.metric('nftproxy_waiting{for="the first listing of endpointslices"}') == 0


QUESTIONS = (
    ("list", "services", "-A"),
    ("list", "endpoints", "-A", "-o", "json"),
    ("list", "affinity", "-A"),
    ("explain", f"{vip(3)}:80"),
    ("diff", "--live", "-"),
)
"""Commands that ask the agent about the cluster."""


def assert_refused(bench: Bench, why: str) -> None:
    """Every question about the cluster is refused with the missing listing, the rules in force, and a way out."""
    in_force = r"\d+ elements of IPv4 and \d+ elements of IPv6, which an earlier agent has loaded, are in force"
    for question in QUESTIONS:
        done = bench.command(*question)
        assert (done.status, done.out) == (1, ""), question
        assert re.search(f"it doesn't know the cluster yet: it waits for {why}; {in_force}", done.err), done.err
        assert "kubectl get nodes,services,endpointslices -A -o yaml >cluster.yaml" in done.err
    status = bench.command("status")
    assert status.status == 1
    assert re.search(r"IPv4: not loaded yet; [1-9]\d* elements of an earlier agent are in force", status.out), (
        status.out
    )
    assert "Services:         not known yet\n" in status.out
    assert not json.loads(bench.command("status", "-o", "json").out)["agent"]["knowsCluster"]


def test_questions_before_the_first_listing(stopped: Bench, server: ApiServer) -> None:
    """An agent that lacks a listing refuses to answer from the rest, and answers once it has the whole cluster."""
    server.rbac = without("endpointslices")
    with stopped.logging("no rules are loaded yet: waiting for the first listing of endpointslices\n"):
        stopped.start()
    assert_refused(stopped, r"the first listing of endpointslices \(403 Forbidden: .*\)")
    assert stopped.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080), "the rules of before stay"
    server.rbac = PERMISSIONS
    stopped.wait_until(lambda: stopped.command("list", "services", "-A").out.count("shop") >= 5, 60)


def test_questions_without_an_api_server(stopped: Bench, server: ApiServer) -> None:
    """An agent that has started without an API server refuses to answer, and names the server that refuses it."""
    server.stop()
    try:
        with stopped.logging("no rules are loaded yet: waiting for the first listing of"):
            stopped.start()
        refused = rf"no connection to 127\.0\.0\.1:{server.port}: Connection refused"
        assert_refused(stopped, rf"the first listing of nodes \({refused}\), and for .*")
    finally:
        server.start()


def test_an_agent_that_may_not_list_service_cidrs(stopped: Bench, server: ApiServer) -> None:
    """The agent continues without ServiceCIDRs, is ready, and follows all other resources."""
    server.rbac = without("servicecidrs")
    with stopped.logging("servicecidrs: may not be listed: going on without them"):
        stopped.start()
    server.put(service(95), endpoints(95))
    stopped.wait_until(lambda: stopped.lab.connect(Origin.POD, vip(95), 80) == endpoint(pod(95), 8080), 60)
    stopped.wait_until(lambda: stopped.healthz().status == 200, 60)


# ---- A table that crashes libnftables --------------------------------------------------------------------------------

NEW_TABLE, DELETE_TABLE, NEW_SET, BATCH_BEGIN, BATCH_END = 0, 2, 9, 0x10, 0x11  # NFT_MSG_*, NFNL_MSG_BATCH_*
IPV4_ADDR = 7  # nft's number of the type
VALUE = 4  # nft's number of a kind of expression for which 1.0.6 has no `typeof` parser and calls a null pointer


def command(kind: int, attributes: bytes, *, resource: int = 0) -> bytes:
    """A message of a batch."""
    body = GENERAL.pack(2 if attributes else 0, 0, socket.htons(resource)) + attributes
    return message(kind, CREATE if attributes else 0, body)


def number(kind: int, value: int) -> bytes:
    """An attribute with a number."""
    return attribute(kind, struct.pack("!I", value))


def make_a_table_of_a_newer_nft() -> None:
    """Make the table `ip theirs` with a set as a newer nft declares it (`userdata` holds nft's own notes)."""
    typeof = bytes([0, 4]) + struct.pack("=I", VALUE) + bytes([1, 0])
    parts = [named(1, "theirs"), named(2, "s"), number(3, 0), number(4, IPV4_ADDR), number(5, 4), number(10, 1)]
    userdata = attribute(13, bytes([3, len(typeof)]) + typeof)
    table = command(10 << 8 | NEW_TABLE, named(1, "theirs"))
    commit(table, command(10 << 8 | NEW_SET, b"".join(parts) + userdata))


def delete_it() -> None:
    """Delete the table `ip theirs` without libnftables, as `nft delete` would crash too."""
    commit(command(10 << 8 | DELETE_TABLE, named(1, "theirs")))


def commit(*commands: bytes) -> None:
    """Send commands as a single transaction."""
    batch = command(BATCH_BEGIN, b"", resource=10), *commands, command(BATCH_END, b"", resource=10)
    with open_socket() as kernel:
        kernel.sendto(b"".join(batch), (0, 0))


def test_a_table_that_libnftables_dies_of(stopped: Bench) -> None:
    """The agent survives the crash, names the likely cause, isn't ready, and loads its rules once the table is gone."""
    stopped.lab.node.call(make_a_table_of_a_newer_nft)
    listing = stopped.lab.node.popen(["nft", "list", "ruleset"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    is_deadly = listing.wait(30) != 0
    try:
        if not is_deadly:
            pytest.skip("this version of nft reads what this test has made")
        with stopped.logging("was killed by SIGSEGV", 3):
            stopped.start()
        assert "most likely a table that a newer nft has made" in stopped.log()
        assert stopped.healthz().status == 503
        assert "the first load of IPv4" in json.loads(stopped.healthz().body)["waitingFor"]
        assert stopped.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080), "the rules of before stay"
    finally:
        stopped.lab.node.call(delete_it)
        if not is_deadly:
            stopped.start()
