"""An agent that can't load its rules yet names the reason in its answers, metrics and log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Origin, endpoint

from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from tests.kernel.ruleset import execute
from tests.support.command import nftproxy
from tests.support.newer_nft import DEADLY, delete_table, is_deadly, make_deadly_table
from tests.system.faults.bench import PERMISSIONS, Bench, endpoints, pod, service, vip
from tests.system.faults.test_life import LOADED

pytestmark = pytest.mark.slow


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
    ("top",),
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


@pytest.fixture(params=DEADLY)
def beside_a_deadly_table(stopped: Bench, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A stopped agent on a node with another program's table, of which libnftables dies."""
    stopped.lab.node.call(make_deadly_table, DEADLY[request.param])
    try:
        if not stopped.lab.node.call(is_deadly):
            pytest.skip("this version of nft reads this table")
        yield stopped
    finally:
        stopped.lab.node.call(delete_table)
        stopped.kill()
        stopped.start()


def test_rules_beside_a_table_that_libnftables_dies_of(beside_a_deadly_table: Bench, server: ApiServer) -> None:
    """The agent loads its rules, follows changes that need libnftables, repairs damage, and is never restarted."""
    bench = beside_a_deadly_table
    with bench.logging(LOADED):
        bench.start()
    first = bench.process_id
    server.put(service(96), endpoints(96, *(f"10.1.1.{last}" for last in range(1, 8))))  # the chain is a new one
    server.put(service(97, externalIPs=["203.0.113.97"], externalTrafficPolicy="Local"), endpoints(97))
    bench.wait_until_right()
    assert bench.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080)
    for harm in ("delete table ip nftproxy", "delete table ip6 nftproxy", "flush map ip nftproxy services"):
        bench.lab.node.call(execute, harm)
        bench.wait_until(lambda: bench.has_tables() and bench.is_right())
    assert bench.process_id == first
    assert bench.lab.node.call(is_deadly)


def test_cleanup_beside_a_table_that_libnftables_dies_of(beside_a_deadly_table: Bench) -> None:
    """The commands that read and remove our tables do so."""
    bench = beside_a_deadly_table
    with bench.logging(LOADED):
        bench.start()
    assert bench.command("status").status == 0
    bench.stop()
    assert bench.lab.node.call(lambda: nftproxy("cleanup")).status == 0
    assert bench.lab.node.call(lambda: Kernel().read_back(Family.IPV4)) is None
    assert bench.lab.node.call(is_deadly)


def test_our_own_table_with_a_set_that_libnftables_dies_of(stopped: Bench) -> None:
    """The agent survives the crash, names the likely cause, isn't ready, and loads its rules once the table is gone."""
    stopped.lab.node.call(make_deadly_table, DEADLY["verdict"], "nftproxy")
    try:
        if not stopped.lab.node.call(is_deadly):
            stopped.start()
            pytest.skip("this version of nft reads this table")
        with stopped.logging("was killed by SIGSEGV", 3):
            stopped.start()
        assert "most likely a set that a newer nft has added to it" in stopped.log()
        assert stopped.healthz().status == 503
        assert "the first load of IPv4" in json.loads(stopped.healthz().body)["waitingFor"]
        assert stopped.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080), "the rules of before stay"
    finally:
        stopped.lab.node.call(delete_table, "nftproxy")
