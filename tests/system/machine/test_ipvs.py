"""`doctor` and `cleanup` with the virtual servers of kube-proxy's IPVS mode, where the kernel has IPVS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import RealNetwork, RealNode

from tests.support.command import nftproxy
from tests.system.machine.conftest import load_module
from tools.migration.switch import EXAMPLE

MODULES = ("ip_vs", "ip_vs_lc", "dummy")
SERVING = (
    ("ipset restore", "ipvs.ipset"),
    ("ip -batch -", "ipvs.addresses"),
    ("ipvsadm --restore", "ipvs.servers"),
)
"""What serves in IPVS mode: commands, and their input in examples/migrate."""
OFFLINE = ["--config", str(EXAMPLE / "config.yaml"), "--node", "node-a"]


@pytest.fixture
def node() -> Iterator[RealNode]:
    """A node with the virtual servers of kube-proxy and the interface that has their addresses."""
    load_module(*MODULES)
    with RealNetwork() as network:
        made = network.node()
        for command, file in SERVING:
            made.node.run(command.split(), (EXAMPLE / file).read_text())
        yield made


def test_the_virtual_servers_and_their_interface_go(node: RealNode) -> None:
    """`doctor` names kube-proxy and its scheduler.  `cleanup` removes its virtual servers alone."""
    node.node.run("ipvsadm --add-service -t 192.0.2.1:443 -s rr".split())
    before = node.node.call(lambda: nftproxy("doctor", *OFFLINE)).out
    assert "NFT604" in before
    assert "lc" in before
    done = node.node.call(lambda: nftproxy("cleanup", "--kube-proxy", "ipvs"))
    assert done.status == 0, done.err
    assert [line.split()[1] for line in node.node.run(["ipvsadm", "--list", "--numeric"]).splitlines()[3:]] == [
        "192.0.2.1:443"
    ]
    assert "kube-ipvs0" not in node.node.run(["ip", "link"])
