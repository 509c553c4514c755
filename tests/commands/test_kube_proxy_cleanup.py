"""kube-proxy's leftovers are removed, and nothing else, in real namespaces and with the real tools."""

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
from tests.support.kube_proxy_rules import FOREIGN, IPTABLES_MODE, IPVS_MODE, TOOLS, restore, run
from tests.support.selection import every

each_tool = pytest.mark.parametrize("tool", TOOLS)
needs_ipset = pytest.mark.skipif(not shutil.which("ipset", path="/usr/sbin:/sbin"), reason="there is no ipset")


def saved(tool: str) -> str:
    """The rules that are there, less the lines that say when they were printed."""
    return re.sub(r"^# (Generated|Completed).*\n", "", run(f"{tool}-save"), flags=re.MULTILINE)


def clean(mode: str) -> list[str]:
    """Remove the leftovers of a mode."""
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
    """kube-proxy's rules are gone, and all other rules are the same byte for byte, also after a second run."""
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
    """A chain to which another program's rule leads is kept and named, with all chains that it leads to."""
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
@each_tool
def test_a_comment_of_others_may_have_any_bytes(tool: str) -> None:
    """A rule whose comment isn't UTF-8 is no obstacle, and stays."""
    restore(tool, IPTABLES_MODE)
    rule = (tool, "-A", "INPUT", "-m", "comment", "--comment", b"caf\xe9")
    subprocess.run(rule, check=True)
    assert len(clean("iptables")) == 3
    assert b"caf\xe9" in subprocess.run(f"{tool}-save", capture_output=True, check=True).stdout


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
    """If the tool refuses a table, the next table is still cleaned, and the error is raised at the end."""
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
    """The kubelet's chains are left alone."""
    assert not CHAIN.fullmatch(chain)


# ---- beside a canary -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("mode", MODES)
def test_what_kube_proxy_still_serves_is_left_alone(mode: str) -> None:
    """Beside a canary's table nothing is removed in any mode.  Without that table everything is."""
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
    """The chains go first, then the sets that they used.  Other programs' sets and rules stay."""
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
    """The kernel's message about a virtual server."""
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
    """kube-proxy's virtual servers are on its interface's addresses or at its node ports."""
    addresses, node_ports = frozenset({"10.96.0.10", "fd00:96::10"}), frozenset({(6, 30080)})
    assert is_kube_proxys(server_of(sent), addresses, node_ports) is ours


class FakeIPVS:
    """The kernel's IPVS, as pyroute2 shows it, for machines whose kernel has none."""

    def __init__(self, *servers: str, scheduler: str = "rr") -> None:
        self.servers = list(servers)
        self._scheduler = scheduler

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
        return [message(af=2, protocol=6, addr=each, port=80, sched_name=self._scheduler) for each in self.servers]


@pytest.mark.usefixtures("node")
def test_virtual_servers_go_before_the_interface_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Virtual servers on the interface's addresses are deleted, then the interface.  All other servers stay."""
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
    """An interface kube-ipvs0 that is no dummy stays."""
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


@pytest.mark.parametrize("mode", every(len(MODES), MODES))
def test_without_permission_that_is_said(as_nobody: Run, mode: str) -> None:
    """A user without permission gets an error that says so."""
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
