"""What kube-proxy leaves behind goes, and nothing else, in real namespaces and with the real tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyroute2 import IPVSService
from pyroute2.netlink.generic.ipvs import ipvsmsg

from nftproxy.commands import kube_proxy_cleanup
from nftproxy.commands.kube_proxy_cleanup import (
    CHAIN,
    MODES,
    SETS,
    is_kube_proxys,
    removals,
    remove_leftovers,
    server_of,
)
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import delete_transaction
from tests.conftest import Run
from tests.support.command import nftproxy
from tests.support.factories import pipeline

FOREIGN = """\
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:DOCKER - [0:0]
:FLANNEL-POSTRTG - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j RETURN
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "it's \\"mine\\", -j KUBE-SERVICES" -m tcp --dport 8080 -j DNAT --to-destination {pod}:80
-A FLANNEL-POSTRTG -s {pod_cidr} -d {pod_cidr} -m comment --comment "flanneld masq" -j RETURN
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:FLANNEL-FWD - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-POD-FW-4BDGZEWEU32YM75H - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -p tcp -m tcp --dport 22 -m comment --comment ssh -j ACCEPT
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FORWARD -j KUBE-ROUTER-FORWARD
-A OUTPUT -j KUBE-FIREWALL
-A FLANNEL-FWD -s {pod_cidr} -m comment --comment "flanneld forward" -j ACCEPT
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
-A KUBE-POD-FW-4BDGZEWEU32YM75H -d {pod} -j KUBE-NWPLCY-DEFAULT
-A KUBE-ROUTER-FORWARD -j KUBE-POD-FW-4BDGZEWEU32YM75H
COMMIT
"""  # noqa: E501 -- a dump
"""What the kubelet, flannel, kube-router, CNI's portmap, docker and an administrator have."""

IPTABLES_MODE = """\
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-EXT-CEZPIJSAUFW5MYPQ - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SEP-54IUPJM2TTG4TKF2 - [0:0]
:KUBE-SEP-VD5CM36UTN4SSMVL - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-CEZPIJSAUFW5MYPQ - [0:0]
:KUBE-SVL-CEZPIJSAUFW5MYPQ - [0:0]
:KUBE-XLB-CEZPIJSAUFW5MYPQ - [0:0]
:KUBE-FW-CEZPIJSAUFW5MYPQ - [0:0]
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-EXT-CEZPIJSAUFW5MYPQ -s {pod_cidr} -m comment --comment "pod traffic" -j KUBE-SVC-CEZPIJSAUFW5MYPQ
-A KUBE-EXT-CEZPIJSAUFW5MYPQ -m comment --comment "masquerade LOCAL" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-EXT-CEZPIJSAUFW5MYPQ -j KUBE-SVL-CEZPIJSAUFW5MYPQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -j KUBE-EXT-CEZPIJSAUFW5MYPQ
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SEP-54IUPJM2TTG4TKF2 -s {pod} -m comment --comment "shop/web:http" -j KUBE-MARK-MASQ
-A KUBE-SEP-54IUPJM2TTG4TKF2 -p tcp -m comment --comment "shop/web:http" -m recent --set --name KUBE-SEP-54IUPJM2TTG4TKF2 --rsource -m tcp -j DNAT --to-destination {endpoint}
-A KUBE-SEP-VD5CM36UTN4SSMVL -p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination {endpoint}
-A KUBE-SERVICES -d {vip} -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CEZPIJSAUFW5MYPQ
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-CEZPIJSAUFW5MYPQ ! -s {pod_cidr} -d {vip} -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-CEZPIJSAUFW5MYPQ -m statistic --mode random --probability 0.5 -j KUBE-SEP-54IUPJM2TTG4TKF2
-A KUBE-SVC-CEZPIJSAUFW5MYPQ -j KUBE-SEP-VD5CM36UTN4SSMVL
-A KUBE-SVL-CEZPIJSAUFW5MYPQ -j KUBE-SEP-VD5CM36UTN4SSMVL
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-I INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-SERVICES -d {vip} -p tcp -m comment --comment "shop/empty has no endpoints" -m tcp --dport 81 -j REJECT
COMMIT
"""  # noqa: E501 -- a dump

IPVS_MODE = """\
*nat
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODE-PORT -p tcp -m comment --comment "Kubernetes nodeport TCP port for masquerade purpose" -m set --match-set {prefix}NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES ! -s {pod_cidr} -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set {prefix}CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set {prefix}CLUSTER-IP dst,dst -j REJECT
-A KUBE-PROXY-FIREWALL -m set --match-set {prefix}CLUSTER-IP dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
COMMIT
"""  # noqa: E501 -- a dump

VALUES = {
    "iptables": {
        "pod": "10.1.0.4",
        "pod_cidr": "10.1.0.0/16",
        "vip": "10.96.0.10/32",
        "endpoint": "10.1.0.4:8080",
        "prefix": "KUBE-",
    },
    "ip6tables": {
        "pod": "[fd00:1::4]",
        "pod_cidr": "fd00:1::/64",
        "vip": "fd00:96::10/128",
        "endpoint": "[fd00:1::4]:8080",
        "prefix": "KUBE-6-",
    },
}
TOOLS = ["iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"]

each_tool = pytest.mark.parametrize("tool", TOOLS)
needs_ipset = pytest.mark.skipif(not shutil.which("ipset", path="/usr/sbin:/sbin"), reason="there is no ipset")


def run(command: str, text: str = "") -> str:
    """Run a command in the test's namespace."""
    path = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
    done = subprocess.run(command.split(), input=text, capture_output=True, text=True, check=False, env=path)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def restore(tool: str, dump: str, options: str = "--noflush") -> None:
    """Add a dump's rules to those that are there."""
    family = tool.split("-")[0]
    text = dump.format(**VALUES[family]).replace("-s [fd00:1::4]", "-s fd00:1::4").replace("-d [", "-d ")
    run(f"{tool}-restore {options}", text.replace("fd00:1::4] -j KUBE-NW", "fd00:1::4 -j KUBE-NW"))


def saved(tool: str) -> str:
    """The rules that are there, less the lines that say when they were printed."""
    return re.sub(r"^# (Generated|Completed).*\n", "", run(f"{tool}-save"), flags=re.MULTILINE)


def clean(mode: str) -> list[str]:
    """Remove what a mode left."""
    return list(remove_leftovers(mode))


@pytest.fixture
def node(namespace: None) -> None:  # noqa: ARG001 -- what this is about is there
    """A namespace on a machine that has the tools that the tests fill it with."""
    if missing := [tool for tool in TOOLS if not shutil.which(f"{tool}-restore", path="/usr/sbin:/sbin")]:
        pytest.skip(f"there is no {', '.join(missing)}")


# ---- iptables ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("node")
@each_tool
def test_chains_of_iptables_mode_go_and_nothing_else(tool: str) -> None:
    """All that kube-proxy made is gone, all that others made is byte for byte as before, also after a second time."""
    restore(tool, FOREIGN, "")
    before = saved(tool)
    restore(tool, IPTABLES_MODE)
    assert saved(tool).count("KUBE-S") > before.count("KUBE-S")
    assert clean("iptables") == [
        f"removed kube-proxy's chains ({count}) from the table {table} of {tool}"
        for table, count in sorted(
            {"mangle": 1, "nat": 12, "filter": 6}.items(), key=lambda item: before.index(item[0])
        )
    ]
    assert saved(tool) == before
    assert clean("iptables") == []
    assert saved(tool) == before


@pytest.mark.usefixtures("node")
@each_tool
def test_a_chain_that_others_use_is_kept(tool: str) -> None:
    """A chain to which someone else's rule leads stays as it is, with what it leads to, and is named."""
    restore(tool, FOREIGN, "")
    restore(tool, IPTABLES_MODE)
    run(f"{tool} -t nat -A CNI-HOSTPORT-DNAT -j KUBE-NODEPORTS")
    run(f"{tool} -t nat -A POSTROUTING -m comment --comment own -j KUBE-MARK-MASQ")
    found = clean("iptables")
    kept = {line.split()[3] for line in found if line.startswith("kept")}
    nat = saved(tool).partition("*nat")[2].partition("COMMIT")[0]
    assert kept == {chain for chain in re.findall(r"^:(\S+)", nat, re.MULTILINE) if CHAIN.fullmatch(chain)}
    assert kept >= {"KUBE-NODEPORTS", "KUBE-MARK-MASQ", "KUBE-EXT-CEZPIJSAUFW5MYPQ", "KUBE-SEP-54IUPJM2TTG4TKF2"}
    assert "KUBE-FW-CEZPIJSAUFW5MYPQ" not in nat
    assert "kubernetes service portals" not in saved(tool)
    assert "--set-xmark 0x4000/0x4000" in saved(tool)
    after = saved(tool)
    assert clean("iptables") == []
    assert saved(tool) == after


@pytest.mark.usefixtures("node")
def test_a_namespace_without_iptables_stays_without() -> None:
    """Looking for leftovers makes no table."""
    assert clean("iptables") == []
    assert run("nft list tables") == ""
    assert [saved(tool) for tool in TOOLS] == [""] * len(TOOLS)


@pytest.mark.usefixtures("node")
def test_a_table_that_iptables_cannot_read_is_a_fault() -> None:
    """Where another program wrote nft rules into a table with chains of kube-proxy's that is said."""
    restore("iptables-nft", IPTABLES_MODE)
    run("nft add chain ip nat mine")
    run("nft add rule ip nat mine numgen random mod 2 vmap { 0 : accept }")
    with pytest.raises(Unavailable, match="iptables-nft can't read the table nat: another program wrote"):
        clean("iptables")


@pytest.mark.usefixtures("node")
def test_a_table_that_iptables_cannot_read_may_be_someone_elses() -> None:
    """Where another program has such a table to itself there is nothing to say."""
    run("iptables-nft -t nat -N OTHERS")
    run("nft add rule ip nat OTHERS numgen random mod 2 vmap { 0 : accept }")
    assert clean("iptables") == []


@pytest.mark.usefixtures("node")
def test_a_table_that_fails_does_not_save_the_others() -> None:
    """If the tool refuses one table, the next one is still cleaned, and the refusal is raised at the end."""
    restore("iptables-nft", IPTABLES_MODE)
    real = removals

    def broken(text: str) -> list[kube_proxy_cleanup.Removal]:
        return [each._replace(text="*nat\n-X NOPE\nCOMMIT\n") if each.table == "nat" else each for each in real(text)]

    with (
        mock.patch.object(kube_proxy_cleanup, "removals", broken),
        pytest.raises(Unavailable, match="table nat: iptables-nft-restore"),
    ):
        clean("iptables")
    assert re.findall(r"^\*(\w+)\n(?:[^*]*\n)?:KUBE-", saved("iptables-nft"), re.MULTILINE) == ["nat"]


def test_tools_that_are_missing_are_passed_over() -> None:
    """On a machine without iptables there is nothing to do, and nothing to say."""
    with mock.patch("shutil.which", return_value=None):
        assert clean("iptables") == []


def test_what_iptables_saves_without_kube_proxy_needs_nothing() -> None:
    """Where no chain is kube-proxy's there is no transaction."""
    assert removals(FOREIGN) == []
    assert removals("") == []


@pytest.mark.parametrize("chain", ["KUBE-FIREWALL", "KUBE-MARK-DROP", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"])
def test_chains_of_the_kubelet_are_not_kube_proxys(chain: str) -> None:
    """What the kubelet makes, and makes again, is left to it."""
    assert not CHAIN.fullmatch(chain)


# ---- beside a canary -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("mode", MODES)
def test_what_kube_proxy_still_serves_is_left_alone(mode: str) -> None:
    """Where a canary's table is, nothing is removed in any mode; once that is gone, everything is."""
    restore("iptables-nft", IPTABLES_MODE)
    run("nft add table ip6 kube-proxy")
    table = pipeline(service_proxy_name="canary").load(Family.IPV6, None).text
    run("nft -f -", table)
    before = saved("iptables-nft")
    with pytest.raises(Unavailable, match="nothing was removed: nftproxy serves just some Services on this node"):
        clean(mode)
    assert saved("iptables-nft") == before
    assert "table ip6 kube-proxy" in run("nft list tables")
    run("nft -f -", delete_transaction(Family.IPV6).text + pipeline().load(Family.IPV6, None).text)
    clean("iptables")
    clean("nftables")
    assert "KUBE-SVC" not in saved("iptables-nft")
    assert "kube-proxy" not in run("nft list tables")


# ---- IPVS ----------------------------------------------------------------------------------------------------------


@needs_ipset
@pytest.mark.usefixtures("node")
@each_tool
def test_chains_and_sets_of_ipvs_mode_go_and_nothing_else(tool: str) -> None:
    """The chains go first, then the sets that they used; sets and rules of others stay."""
    version, prefix = ("inet6", "KUBE-6-") if tool.startswith("ip6") else ("inet", "KUBE-")
    restore(tool, FOREIGN, "")
    run(f"ipset create mine hash:ip family {version}")
    before, sets_before = saved(tool), run("ipset save")
    run(f"ipset create {prefix}CLUSTER-IP hash:ip,port family {version}")
    run(f"ipset create {prefix}NODE-PORT-TCP bitmap:port range 0-65535")
    run(f"ipset add {prefix}NODE-PORT-TCP 30080")
    restore(tool, IPVS_MODE)
    assert clean("ipvs")[-2:] == [f"removed the set {prefix}CLUSTER-IP", f"removed the set {prefix}NODE-PORT-TCP"]
    assert (saved(tool), run("ipset save")) == (before, sets_before)
    assert clean("ipvs") == []
    assert (saved(tool), run("ipset save")) == (before, sets_before)


@needs_ipset
@pytest.mark.usefixtures("node")
def test_a_set_that_others_use_is_kept() -> None:
    """A set in someone else's rule stays, and is named."""
    run("ipset create KUBE-CLUSTER-IP hash:ip,port")
    run("iptables-nft -A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT")
    (line,) = clean("ipvs")
    assert line.startswith("kept the set KUBE-CLUSTER-IP: ")
    assert "KUBE-CLUSTER-IP" in run("ipset list -n")


@needs_ipset
@pytest.mark.usefixtures("node")
def test_node_ports_are_read_from_the_sets() -> None:
    """The virtual servers at node ports are recognised by protocol and port, from sets of either family."""
    run("ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535")
    run("ipset add KUBE-NODE-PORT-TCP 30080-30081")
    run("ipset create KUBE-6-NODE-PORT-UDP bitmap:port range 0-65535")
    run("ipset add KUBE-6-NODE-PORT-UDP 30053")
    run("ipset create KUBE-NODE-PORT-SCTP-HASH hash:ip,port")
    run("ipset add KUBE-NODE-PORT-SCTP-HASH 192.168.0.2,sctp:30868")
    assert kube_proxy_cleanup._node_ports() == {(6, 30080), (6, 30081), (17, 30053), (132, 30868)}


def message(**attributes: object) -> ipvsmsg:
    """What the kernel would send about a virtual server."""
    sent = ipvsmsg()
    nested = {"attrs": [(f"IPVS_SVC_ATTR_{name.upper()}", value) for name, value in attributes.items()]}
    sent["attrs"] = [("IPVS_CMD_ATTR_SERVICE", nested)]
    sent.encode()
    read = ipvsmsg(sent.data)
    read.decode()
    return read


@pytest.mark.parametrize(
    ("sent", "ours"),
    [
        (message(af=2, protocol=6, addr="10.96.0.10", port=80), True),
        (message(af=10, protocol=6, addr="fd00:96::10", port=80), True),
        (message(af=2, protocol=6, addr="192.168.0.2", port=30080), True),
        (message(af=2, protocol=17, addr="192.168.0.2", port=30080), False),
        (message(af=2, protocol=6, addr="203.0.113.7", port=80), False),
        (message(af=2, fwmark=7), False),
    ],
    ids=["service", "service IPv6", "node port", "another protocol", "someone else's", "firewall mark"],
)
def test_virtual_servers_are_told_apart(sent: ipvsmsg, ours: bool) -> None:
    """Kube-proxy's are those on its interface's addresses and at its node ports, and no others."""
    addresses, node_ports = frozenset({"10.96.0.10", "fd00:96::10"}), frozenset({(6, 30080)})
    assert is_kube_proxys(server_of(sent), addresses, node_ports) is ours


class FakeIPVS:
    """The kernel's IPVS, as pyroute2 shows it, for machines whose kernel has none."""

    def __init__(self, *servers: str) -> None:
        self.servers = list(servers)

    def __call__(self) -> FakeIPVS:
        """Be the class, too."""
        return self

    def __enter__(self) -> FakeIPVS:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def service(self, command: str, service: IPVSService | None = None) -> list[Any]:
        """List the servers, or delete one."""
        if command == "del":
            assert service is not None
            self.servers.remove(service["addr"])
            return []
        return [message(af=2, protocol=6, addr=address, port=80) for address in self.servers]


@pytest.mark.usefixtures("node")
def test_virtual_servers_go_before_the_interface_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the virtual servers those on the interface's addresses are deleted, then the interface; others stay."""
    ipvs = FakeIPVS("10.96.0.10", "203.0.113.7")
    monkeypatch.setattr(kube_proxy_cleanup, "IPVS", ipvs)
    monkeypatch.setattr(kube_proxy_cleanup, "IPVS_IN_KERNEL", tmp_path)
    monkeypatch.setattr(kube_proxy_cleanup, "DUMMY_KIND", "bridge")  # which more kernels have
    run("ip link add kube-ipvs0 type bridge")
    run("ip address add 10.96.0.10/32 dev kube-ipvs0")
    found = ["removed the virtual server 10.96.0.10 port 80", "removed the interface kube-ipvs0"]
    assert clean("ipvs") == found
    assert ipvs.servers == ["203.0.113.7"]
    assert "kube-ipvs0" not in run("ip link")
    assert clean("ipvs") == []


@pytest.mark.usefixtures("node")
def test_an_interface_of_another_kind_is_not_kube_proxys() -> None:
    """What is called kube-ipvs0 and is no dummy stays."""
    run("ip link add kube-ipvs0 type bridge")
    assert clean("ipvs") == []
    assert "kube-ipvs0" in run("ip link")


def test_names_of_sets_are_as_long_as_ipset_allows() -> None:
    """The IPv6 twins have the prefix KUBE-6- and are cut off where kube-proxy cuts them off."""
    assert {"KUBE-LOOP-BACK", "KUBE-6-LOOP-BACK", "KUBE-6-LOAD-BALANCER-SOURCE-CID"} <= SETS
    assert max(map(len, SETS)) == 31


# ---- nftables ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("namespace")
def test_tables_of_nftables_mode_go_and_nothing_else() -> None:
    """Both tables that are named kube-proxy go, and tables of that name in other families don't."""
    run("nft add table inet kube-proxy")
    run("nft add table ip nftproxy")
    before = run("nft list ruleset")
    rules = "chain services { type nat hook prerouting priority -100; }\nset cluster-ips { type ipv4_addr; }\n"
    run("nft -f -", f"table ip kube-proxy {{ {rules} }}\ntable ip6 kube-proxy {{ }}\n")
    assert clean("nftables") == ["removed the table ip kube-proxy", "removed the table ip6 kube-proxy"]
    assert run("nft list ruleset") == before
    assert clean("nftables") == []
    assert run("nft list ruleset") == before


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_without_permission_that_is_said(as_nobody: Run, mode: str) -> None:
    """A user who may not change the rules gets the error for that."""
    code = (
        "from nftproxy.commands.kube_proxy_cleanup import *\n"
        f"try: print(list(remove_leftovers('{mode}')))\n"
        "except Unavailable as error: print('Unavailable:', error)"
    )
    assert as_nobody(code).startswith("Unavailable: ")


@pytest.mark.usefixtures("namespace")
def test_the_command_removes_kube_proxys_rules_and_leaves_ours() -> None:
    """`cleanup --kube-proxy` is for a node on which nftproxy runs: it says what it removed, and our tables stay."""
    run("nft add table ip kube-proxy")
    run("nft add table ip nftproxy")
    done = nftproxy("cleanup", "--kube-proxy", "nftables")
    assert (done.status, done.out, done.err) == (0, "", "removed the table ip kube-proxy\n")
    assert run("nft list tables") == "table ip nftproxy\n"
