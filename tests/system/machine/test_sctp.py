"""Whole SCTP associations through a Service, where the kernel has SCTP sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from nftproxy_conformance.lab import RealNetwork

from tests.support.command import nftproxy
from tests.support.waiting import PATIENCE
from tests.system.machine.conftest import load_module
from tools.migration.switch import EXAMPLE, PODS, VIP

ASSOCIATIONS = 32
"""They miss one of two endpoints once in two billion times."""


@pytest.mark.slow
def test_associations_are_answered(tmp_path: Path) -> None:
    """A pod, the node, and a client outside reach both pods behind a ClusterIP and a node port by SCTP."""
    load_module("sctp")
    (tmp_path / "cluster.yaml").write_text((EXAMPLE / "node" / "cluster.yaml").read_text().replace("TCP", "SCTP"))
    with RealNetwork() as network:
        node = network.node()
        for name, addresses in PODS.items():
            node.pod(name, *addresses).serve(8080, "sctp")
        client = node.pod("client", "10.1.0.99", "fd00:1::99")
        outside = network.host("outside", "198.51.100.99", "2001:db8:100::99")
        node.load(nftproxy("render", str(tmp_path), "--config", str(EXAMPLE / "config.yaml"), "--node", "node-a").out)
        for host, address, port in ((client, VIP, 80), (node, VIP, 80), (outside, node.address, 30080)):
            asked = [host.ask(address, port, "sctp", timeout=PATIENCE).name for _ in range(ASSOCIATIONS)]
            assert set(asked) == set(PODS)
