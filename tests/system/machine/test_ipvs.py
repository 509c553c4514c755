"""A node with the virtual servers of kube-proxy's IPVS mode, where the kernel has IPVS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import RealNetwork, RealNode

from tests.support.command import nftproxy
from tests.support.waiting import PATIENCE
from tests.system.machine.conftest import load_module
from tools.migration.switch import EXAMPLE, PODS, VIP, WEB

MODULES = ("ip_vs", "ip_vs_lc", "dummy")
SERVING = (
    ("ipset restore", "ipvs.ipset"),
    ("iptables-nft-restore --noflush", "ipvs.rules"),
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
        made.node.sysctl({"ipv4/vs/conntrack": "1"})  # as kube-proxy sets it
        for command, file in SERVING:
            made.node.run(command.split(), (EXAMPLE / file).read_text())
        yield made


def test_the_virtual_servers_and_their_interface_go(node: RealNode) -> None:
    """`doctor` names kube-proxy and its scheduler.  `cleanup` removes its virtual servers alone."""
    node.node.run("ipvsadm --add-service -t 192.0.2.1:443 -s rr".split())
    before = node.node.call(lambda: nftproxy("doctor", *OFFLINE[:2], "--hostname-override", "node-a")).out
    assert "NFT604" in before
    assert "lc" in before
    done = node.node.call(lambda: nftproxy("cleanup", "--kube-proxy", "ipvs"))
    assert done.status == 0, done.err
    assert [line.split()[1] for line in node.node.run(["ipvsadm", "--list", "--numeric"]).splitlines()[3:]] == [
        "192.0.2.1:443"
    ]
    assert "kube-ipvs0" not in node.node.run(["ip", "link"])


def test_connections_during_a_migration(node: RealNode) -> None:
    """New connections are always answered, and one that IPVS translates goes on beside our rules until `cleanup`."""
    for name, addresses in PODS.items():
        node.pod(name, *addresses).serve(8080)
    client = node.pod("client", "10.1.0.99", "fd00:1::99")

    def served() -> bool:
        """True if a new connection of each client is answered."""
        return {host.ask(VIP, WEB, timeout=PATIENCE).name for host in (client, node)} <= set(PODS)

    assert served()
    with client.talk(VIP, WEB, timeout=PATIENCE) as kept:
        kept.ask()
        node.load(nftproxy("render", str(EXAMPLE / "node"), *OFFLINE).out)
        assert served()
        kept.ask()
        assert node.node.call(lambda: nftproxy("cleanup", "--kube-proxy", "ipvs")).status == 0
        assert served()
