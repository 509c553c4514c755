"""The agent's socket and its commands: listings, status, explanations, and access by users."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Origin
from nftproxy_conformance.lab.topology import NODE_NAME

from nftproxy.agent.socket.agent_socket import CONNECTIONS
from nftproxy.kernel.nfnetlink.elements import count_elements, is_full
from nftproxy.kernel.nfnetlink.nft_queries import sets
from nftproxy.model.addresses import TABLE, Family
from tests.conftest import NOBODY
from tests.support.command import Done
from tests.support.waiting import PATIENCE
from tests.system.faults.bench import PLURALS, Bench, endpoints, pod, service, vip
from tests.system.packets.manifests import labelled

pytestmark = pytest.mark.slow

LIVE_COMMANDS = [["status"], ["list", "services"], ["list", "affinity"], ["explain", "10.96.0.1:80"]]
SHORT = 0.3
"""Seconds that a command waits for an agent that this test has stopped."""


def items(done: Done) -> list[dict[str, Any]]:
    """The rows that `list -o json` prints."""
    assert done.status == 0, done.err
    return list(json.loads(done.out)["items"])


@contextlib.contextmanager
def stopped(bench: Bench) -> Iterator[None]:
    """Stop the agent's process with SIGSTOP, and continue it at the end."""
    os.kill(bench.process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(bench.process_id, signal.SIGCONT)


def test_status_of_a_healthy_agent(bench: Bench, server: ApiServer) -> None:
    """Status of a healthy agent has its watches, its last transaction, its versions, and exit status 0."""
    server.put(service(20), endpoints(20))
    bench.wait_until_right()
    done = bench.command("status", "-o", "json")
    state = json.loads(done.out)
    agent = state["agent"]
    assert (done.status, state["isHealthy"], agent["whyNot"], agent["process"]) == (0, True, [], bench.process_id)
    assert {watch["resource"]: watch["activity"] for watch in agent["watches"]} == dict.fromkeys(PLURALS, "watching")
    events = {watch["resource"]: watch["lastEvent"] for watch in agent["watches"]}
    assert agent["lastTransaction"]["at"] >= events["services"]
    assert not agent["lastTransaction"]["isFull"]
    assert agent["services"] == len(server.objects("Service"))
    assert [each["waiting"] for each in agent["families"]] == [0.0, 0.0]
    assert agent["source"] == server.url
    assert agent["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    text = bench.command("status").out
    assert text.startswith(f"Agent:            healthy; node {agent['node']}, process {bench.process_id}, up for ")
    assert "endpointslices: watching for " in text


def test_status_says_why_the_agent_is_not_healthy(bench: Bench, server: ApiServer) -> None:
    """While another program owns the agent's table, status names the kernel's refusal."""
    before = json.loads(bench.command("status", "-o", "json").out)["agent"]["lastRefusal"]
    owner = f"delete table ip {TABLE}; add table ip {TABLE} {{ flags owner; }}"
    blocking = bench.lab.node.popen(["nft", "-i"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert blocking.stdin
    try:
        blocking.stdin.write(f"{owner}\n")
        blocking.stdin.flush()

        def refusal() -> Any:
            return json.loads(bench.command("status", "-o", "json").out)["agent"]["lastRefusal"]

        server.put(service(21), endpoints(21))
        bench.wait_until(lambda: refusal() not in (None, before))
        assert "IPv4" in refusal()["families"]
        assert refusal()["reason"]
    finally:
        blocking.kill()
        blocking.communicate()
    bench.wait_until_right()


def test_services_are_listed_as_by_kubectl(bench: Bench, server: ApiServer) -> None:
    """Services are selected by namespace and labels, and a changed label is known without a transaction."""
    server.put(labelled(service(30), app="front"), endpoints(30), labelled(service(31), app="back"))
    bench.wait_until_right()
    assert "shop" in {row["namespace"] for row in items(bench.command("list", "services", "-A", "-o", "json"))}
    chosen = bench.command("list", "services", "-n", "shop", "-l", "app in (front, other)")
    header, row = chosen.out.splitlines()
    assert header.split() == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "ENDPOINTS", "STATE", "AGE"]
    assert row.split()[:7] == ["s30", "ClusterIP", vip(30), "<none>", "80/TCP", "1/1", "Served"]
    transactions = bench.metric('nftproxy_transactions_total{kind="change"}')
    server.put(labelled(service(31), app="other"))

    def names() -> str:
        return bench.command("list", "services", "-n", "shop", "-l", "app=other", "-o", "name").out

    bench.wait_until(lambda: names() == "svc/shop/s31\n")
    assert bench.metric('nftproxy_transactions_total{kind="change"}') == transactions
    nothing = bench.command("list", "services", "-l", "app=other")
    assert (nothing.status, nothing.out, nothing.err) == (0, "", "No resources found in default namespace.\n")
    bad = bench.command("list", "services", "-l", "app in front")
    assert (bad.status, bad.err[:18]) == (2, "error: NFT121: sel")


def test_endpoints_conflicts_and_quarantine_are_listed(bench: Bench, server: ApiServer) -> None:
    """Lists show why each endpoint is used or not, the holder of each conflict, and each quarantined Service."""
    unready = endpoints(32, pod(32), "10.1.0.99")
    unready["endpoints"][1]["conditions"] = {"ready": False}
    taken = service(33, externalIPs=["203.0.113.33"])
    late = service(34, externalIPs=["203.0.113.33"])
    late["metadata"]["creationTimestamp"] = "2030-01-01T00:00:00Z"
    ports = [{"name": f"p{number}", "port": number} for number in range(1, 9_000)]
    huge = service(35, ports=ports, externalIPs=["203.0.113.35"])
    server.put(service(32), unready, taken, late, huge)
    bench.wait_until_right()
    rows = items(bench.command("list", "endpoints", "-A", "-o", "json"))
    found = {row["address"]: (row["isUsed"], row["why"]) for row in rows if row["service"] == "s32"}
    assert found == {pod(32): (True, "ready"), "10.1.0.99": (False, "not ready")}
    (conflict,) = items(bench.command("list", "conflicts", "-n", "shop", "-o", "json"))
    assert (conflict["service"], conflict["holder"]) == ("s34", "shop/s33")
    (quarantined,) = items(bench.command("list", "quarantined", "-n", "shop", "-o", "json"))
    assert quarantined["service"] == "s35"
    states = {row["service"]: row["state"] for row in items(bench.command("list", "services", "-A", "-o", "json"))}
    assert [states[name] for name in ("s33", "s34", "s35")] == ["NoEndpoints", "Conflict", "Quarantined"]
    assert states["s32"] == "Served"


def test_remembered_clients_are_listed_and_counted(bench: Bench, server: ApiServer) -> None:
    """The kernel's affinity entries are listed by Service up to a limit, and status counts the entries of a map."""
    server.put(service(36, sessionAffinity="ClientIP"), endpoints(36))
    bench.wait_until_right()
    sources = [f"10.1.0.{number}" for number in range(40, 43)]
    for source in sources:
        bench.lab.connect(Origin.POD, vip(36), 80, source=source)
    rows = items(bench.command("list", "affinity", "-n", "shop", "-o", "json"))
    assert sorted(row["client"] for row in rows) == sources
    assert {(row["service"], row["address"], row["port"], row["pod"]) for row in rows} == {
        ("s36", vip(36), 80, pod(36))
    }
    assert all(10_000 < row["secondsLeft"] <= row["timeout"] == 10_800 for row in rows)
    cut = bench.command("list", "affinity", "-n", "shop", "--limit", "2")
    assert len(cut.out.splitlines()) == 3
    assert "there are more" in cut.err
    (fill,) = json.loads(bench.command("status", "-o", "json").out)["agent"]["affinity"]
    assert (fill["name"], fill["clients"], fill["size"], fill["isFull"]) == ("tcp-affinity-10800", 3, 1_048_576, False)

    def uncounted() -> tuple[tuple[int, bool], tuple[int, bool], bool]:
        (found,) = [each for each in sets(Family.IPV4) if each.name == fill["name"]]
        family = Family.IPV4
        return count_elements(family, found, 100), count_elements(family, found, 3), is_full(family, found)

    assert bench.lab.node.call(uncounted) == ((3, False), (3, True), False)


def test_the_clients_of_a_limit_are_counted(bench: Bench, server: ApiServer) -> None:
    """Status has the fill of the set of clients of each limit, on kernels that don't count elements, too."""
    limited = service(39)
    limited["metadata"]["annotations"] = {"nftproxy.dev/client-connections": "7"}
    server.put(limited, endpoints(39))
    bench.wait_until_right()
    bench.lab.load(f"add element ip nftproxy connections-7 {{ 198.18.0.1 . {vip(39)} . tcp . 80 }}")
    bench.wait_until(lambda: "IPv4 connections-7: 1 clients" in bench.command("status").out)
    (found,) = bench.lab.node.call(lambda: [each for each in sets(Family.IPV4) if each.name == "connections-7"])
    assert bench.lab.node.call(lambda: (count_elements(Family.IPV4, found, 9), is_full(Family.IPV4, found))) == (
        (1, False),
        False,
    )


def test_a_connection_is_explained_live(bench: Bench, server: ApiServer) -> None:
    """The agent's explanation has the client's remembered pod, and whether the kernel holds each expected element."""
    server.put(service(38, sessionAffinity="ClientIP"), endpoints(38))
    bench.wait_until_right()
    bench.lab.connect(Origin.POD, vip(38), 80, source="10.1.0.77")
    place = f"{vip(38)}:80"

    def explained() -> Any:
        done = bench.command("explain", place, "--from", "10.1.0.77", "--output", "json")
        assert done.status == 0, done.err
        return json.loads(done.out)["places"][0]

    found = explained()
    assert found["owner"] == {"namespace": "shop", "name": "s38", "port": ""}
    assert found["affinity"]["remembered"]["pod"] == pod(38)
    assert 10_000 < found["affinity"]["remembered"]["seconds"] <= 10_800
    assert found["expected"]
    assert {each["is_held"] for each in found["expected"]} == {True}
    assert "ClusterIP of Service shop/s38" in bench.command("explain", "svc/shop/s38").out
    assert bench.command("explain", "x").status == 2


def test_services_that_are_not_served_are_explained_live(bench: Bench, server: ApiServer) -> None:
    """The agent knows why it serves no headless Service and no other proxy's, and of no name that isn't there."""
    headless = service(40)
    headless["spec"] |= {"clusterIP": "None", "clusterIPs": ["None"]}
    server.put(headless, labelled(service(41), **{"service.kubernetes.io__service-proxy-name": "other"}))

    def answer(to: str) -> tuple[int, str]:
        done = bench.command("explain", to)
        return done.status, done.out

    bench.wait_until(lambda: "it is headless (clusterIP None)" in answer("svc/shop/s40")[1])
    bench.wait_until(lambda: "it is for another proxy" in answer("svc/shop/s41")[1])
    assert "Service shop/s41 has it, which this proxy doesn't serve" in answer(f"{vip(41)}:80")[1]
    assert answer("svc/shop/s40")[0] == 0
    status, text = answer("svc/shop/s42")
    assert (status, "this proxy knows no Service shop/s42" in text) == (1, True)


def test_manifests_are_compared_with_what_the_kernel_holds(bench: Bench, server: ApiServer, tmp_path: Path) -> None:
    """A live diff is empty for the cluster's own objects, and shows changed manifests and damaged tables."""
    server.put(service(39), endpoints(39))
    bench.wait_until_right()
    file = tmp_path / "all.json"

    def compare() -> Done:
        return bench.command("diff", "--live", str(file))

    def save(*without: str) -> None:
        kinds = ("Service", "EndpointSlice")
        every = [each | {"kind": kind} for kind in kinds for each in server.objects(kind)]
        kept = [each for each in every if each["metadata"]["name"] not in without]
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": kept}))

    save()
    same = compare()
    assert (same.status, same.out) == (0, ""), same.err
    save("s39")
    gone = compare()
    assert gone.status == 1
    assert f"delete element ip nftproxy cluster-ips {{ {vip(39)} }}\n" in gone.out
    save()
    with stopped(bench):  # a running agent would repair the damage
        assert bench.command("diff", "--live", str(file), timeout=SHORT).status == 1
        bench.lab.node.run(["nft", "delete", "element", "ip", TABLE, "cluster-ips", f"{{ {vip(39)} }}"])
        offline = ["--node", NODE_NAME, "--config", str(bench.config_map.path)]
        objects = tmp_path / "node.json"
        nodes = [each | {"kind": kind} for kind in ("Node", "ServiceCIDR") for each in server.objects(kind)]
        objects.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
        damaged = bench.command("diff", "--live", str(file), str(objects), *offline, timeout=SHORT)
    assert damaged.out == f"add element ip nftproxy cluster-ips {{ {vip(39)} }}\n", damaged.err
    assert damaged.status == 1
    bench.wait_until_right()


@pytest.mark.parametrize("command", LIVE_COMMANDS, ids=" ".join)
def test_an_agent_that_hangs_is_named(bench: Bench, command: list[str]) -> None:
    """Every live command fails after its timeout, names the stopped process, and says how to continue it."""
    with stopped(bench):
        done = bench.command(*command, timeout=SHORT)
    assert done.status == 1
    assert f"(process {bench.process_id}) doesn't answer within {SHORT} s: it is stopped" in done.out + done.err
    assert f"kill -CONT {bench.process_id}" in done.out + done.err
    bench.wait_until(lambda: bench.command("status").status == 0)


def test_status_from_the_kernel_alone(bench: Bench) -> None:
    """Without an answer of the agent, status still shows the kernel's tables and the agent's process."""
    with stopped(bench):
        state = json.loads(bench.command("status", "-o", "json", timeout=SHORT).out)
    tables = state["kernel"]["tables"]
    assert [(each["family"], each["isThere"], bool(each["shape"])) for each in tables] == [
        ("IPv4", True, True), ("IPv6", True, True),
    ]  # fmt: skip
    assert state["agent"] is None
    assert state["process"] == bench.process_id


def test_an_agent_that_was_killed_is_missed_and_replaced(bench: Bench) -> None:
    """After a kill every live command says that no process listens, and the next agent takes over the socket."""
    os.kill(bench.process_id, signal.SIGKILL)
    bench.await_end()
    for command in LIVE_COMMANDS:
        done = bench.command(*command)
        assert done.status == 1
        assert "no process listens" in done.out + done.err
        assert "no nftproxy runs in this network namespace: start it" in done.out + done.err
    assert bench.socket_path.exists()
    bench.start()
    bench.wait_until(lambda: bench.command("status").status == 0)
    assert len(list(bench.socket_path.parent.iterdir())) == 1


def test_the_socket_is_the_agents_users_alone(bench: Bench) -> None:
    """The modes of socket and directory keep other users out, and the agent answers 403 to another user."""
    directory = bench.socket_path.parent
    assert stat.S_IMODE(bench.socket_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(sys.argv[1]);"
        "s.send(b'GET /v1/status HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n'); print(s.recv(100))"
    )
    # A file descriptor of the socket spares us opening all directories of its path to other users.
    held = os.open(bench.socket_path, os.O_PATH)
    try:
        bench.socket_path.chmod(0o666)
        path = f"/proc/self/fd/{held}"
        done = subprocess.run(
            ["/usr/bin/python3", "-c", program, path],
            user=NOBODY, group=NOBODY, pass_fds=[held], capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        bench.socket_path.chmod(0o600)
        os.close(held)
    assert " 403 " in done.stdout, done
    assert f"user {NOBODY} may not ask" in bench.log(), done
    assert bench.command("status").status == 0


def test_silent_and_hasty_connections_stop_nobody(bench: Bench, server: ApiServer) -> None:
    """Three times as many silent or faulty connections as allowed stop neither commands nor changes of rules."""
    opened = [socket.socket(socket.AF_UNIX) for _ in range(3 * CONNECTIONS.connections)]
    try:
        for number, each in enumerate(opened):
            each.connect(str(bench.socket_path))
            each.settimeout(PATIENCE)
            with contextlib.suppress(OSError):
                each.send(b"\0" * 20_000 if number % 2 else b"GET /v1/services HTT")
        server.put(service(37), endpoints(37))
        bench.wait_until_right()
        assert bench.command("list", "services", "-A").status == 0
    finally:
        for each in opened:
            each.close()
