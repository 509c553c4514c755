"""The startup taint of a node is removed once the agent has loaded all rules, and not before."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer

from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.model.addresses import Family
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import CREATE, named
from tests.support.newer_nft import IP, number
from tests.system.faults.bench import PERMISSIONS, Bench, node
from tests.system.faults.test_life import LOADED

pytestmark = pytest.mark.slow

KEY = "nftproxy.dev/not-ready"
TAINT = {"key": KEY, "effect": "NoSchedule"}
OTHER = {"key": "example.org/maintenance", "effect": "NoExecute"}
ALLOWED = [*PERMISSIONS, ("", "nodes", "get"), ("", "nodes", "patch")]
PATIENCE = 60.0
AGENT = "tests.system.faults.hasty"
TABLE_FLAGS, OWNER = 2, 2
"""NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER."""


def start(bench: Bench, server: ApiServer, key: str) -> None:
    """Start the agent with a startup taint and the permissions that it requires."""
    server.rbac = ALLOWED
    bench.config_map.update(yaml.safe_dump(bench.configuration | {"nftproxy": {"startupTaint": key}}))
    bench.start()


def taints(server: ApiServer) -> list[Any]:
    """The Node's taints."""
    (found,) = server.objects("Node")
    result = found["spec"]["taints"]
    assert isinstance(result, list)
    return result


def patches(bench: Bench) -> list[int]:
    """The statuses of all writes to Nodes."""
    return [each.status for each in bench.requests(verb="patch", resource="nodes")]


def own_the_table() -> socket.socket:
    """Make `ip nftproxy` a table that only this socket may change while it is open (NFT_TABLE_F_OWNER)."""
    kernel = open_socket()
    table = nft.request(nft.NEW_TABLE, CREATE, IP, named(nft.OF_TABLE, "nftproxy") + number(TABLE_FLAGS, OWNER))
    kernel.sendto(nft.batch([table]), (0, 0))
    return kernel


def test_without_the_option_a_node_is_only_watched(bench: Bench, server: ApiServer) -> None:
    """An agent without the option only lists and watches Nodes, and leaves the taint."""
    server.put(node() | {"spec": {"taints": [OTHER, TAINT]}})
    bench.wait_until_right(PATIENCE)
    assert {each.verb for each in server.requests(resource="nodes")} == {"list", "watch"}
    assert taints(server) == [OTHER, TAINT]


def test_the_startup_taint_stays_until_the_first_load(bench: Bench, server: ApiServer) -> None:
    """The taint stays until all resources are listed and both families are loaded, and is removed a single time."""
    bench.stop()
    server.put(node() | {"spec": {"taints": [OTHER, TAINT]}})
    for family in Family:
        bench.lab.node.run(["nft", "delete", "table", family.value, "nftproxy"])
    owner = bench.lab.node.call(own_the_table)
    loads = bench.log().count(LOADED)
    start(bench, server, KEY)
    server.rbac = [each for each in ALLOWED if each[1] != "endpointslices"]
    bench.wait_until(lambda: "the first listing of endpointslices" in waits_for(bench), PATIENCE)
    assert (taints(server), patches(bench)) == ([OTHER, TAINT], [])
    server.rbac = ALLOWED
    bench.wait_until(lambda: waits_for(bench) == ["the first load of IPv4"], PATIENCE)
    bench.wait_until(lambda: bench.log().count(LOADED) > loads, PATIENCE)
    assert bench.log().count(LOADED) == loads + 1, "that of IPv6"
    assert bench.held()[Family.IPV6]
    assert (taints(server), bench.requests(resource="nodes", verb="get")) == ([OTHER, TAINT], [])
    owner.close()
    bench.wait_until(lambda: taints(server) == [OTHER], PATIENCE)
    bench.wait_until_right(PATIENCE)
    assert patches(bench) == [200]
    assert f"removed the taint {KEY} from Node node-a" in bench.log()
    server.put(node() | {"spec": {"taints": [TAINT]}})
    bench.wait_until_right(PATIENCE)
    assert (taints(server), patches(bench)) == ([TAINT], [200]), "who sets it again means something else by it"


def waits_for(bench: Bench) -> list[str]:
    """The agent's list of events that must happen before all rules are loaded."""
    try:
        found = json.loads(bench.healthz().body).get("waitingFor", [])
    except OSError:
        return []
    assert isinstance(found, list)
    return found
