"""Traces of other service proxies are found in every form, and no other program's are taken for theirs."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from nftproxy.kernel.others.other_proxies import MOST, other_proxies
from tests.conftest import Run

PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
TOOLS = ["iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"]

pytestmark = [
    pytest.mark.usefixtures("namespace"),
    pytest.mark.skipif(
        any(not shutil.which(tool, path=PATH) for tool in TOOLS), reason="both variants of iptables are needed"
    ),
]
PLACES = {
    "iptables-nft": "ip nat",
    "ip6tables-nft": "ip6 nat",
    "iptables-legacy": "nat of legacy iptables",
    "ip6tables-legacy": "nat of legacy ip6tables",
}


def run(command: str) -> str:
    """Run a command in the test's namespace."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False, env={"PATH": PATH})
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_an_empty_namespace_has_none_and_stays_empty() -> None:
    """An empty namespace has no traces, and looking for them makes no table."""
    assert other_proxies() == {}
    assert run("nft list tables") == ""
    assert run("iptables-legacy-save") == ""


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("chain", "proxy", "mode"),
    [
        ("KUBE-SERVICES", "kube-proxy", " (iptables or ipvs mode)"),
        ("KUBE-NODE-PORT", "kube-proxy", " (iptables or ipvs mode)"),
        ("KUBE-ROUTER-SERVICES", "kube-router", ""),
        ("CILIUM_PRE_nat", "Cilium", ""),
    ],
)
def test_chains_of_iptables(tool: str, chain: str, proxy: str, mode: str) -> None:
    """A proxy's chain is found in either family and variant of iptables, until it is gone."""
    run(f"{tool} -t nat -N {chain}")
    assert other_proxies() == {proxy: [f"the chain {chain} in the table {PLACES[tool]}{mode}"]}
    run(f"{tool} -t nat -X {chain}")
    assert other_proxies() == {}


def test_tables_of_nftables_mode() -> None:
    """kube-proxy's tables of nftables mode are found by family.  A table of that name in another family isn't its."""
    run("nft add table inet kube-proxy")
    assert other_proxies() == {}
    run("nft add table ip6 kube-proxy")
    assert other_proxies() == {"kube-proxy": ["the table ip6 kube-proxy (nftables mode)"]}


@pytest.mark.parametrize(
    ("interface", "found"),
    [
        ("kube-ipvs0", {"kube-proxy": ["the interface kube-ipvs0 (ipvs mode)"]}),
        ("kube-dummy-if", {"kube-router": ["the interface kube-dummy-if"]}),
        ("cilium_host", {"Cilium": ["the interface cilium_host"]}),
    ],
)
def test_interfaces(interface: str, found: dict[str, list[str]]) -> None:
    """The interfaces that proxies make are found, of any kind."""
    run(f"ip link add {interface} type bridge")
    assert other_proxies() == found


@pytest.mark.parametrize("tool", TOOLS)
def test_others_chains_are_no_traces(tool: str) -> None:
    """Chains of kubelet and CNI plugins, and names that only begin or end like a proxy's, are no traces."""
    for chain in ("KUBE-FIREWALL", "KUBE-MARK-DROP", "KUBE-KUBELET-CANARY", "CNI-HOSTPORT-DNAT", "MY-KUBE-SERVICES"):
        run(f"{tool} -t nat -N {chain}")
    run(f"{tool} -t nat -A CNI-HOSTPORT-DNAT -m comment --comment KUBE-SERVICES -j RETURN")
    assert other_proxies() == {}


def test_so_many_are_named_and_no_more() -> None:
    """Some traces are named of a proxy with many, and the traces of another proxy as well."""
    for number in range(MOST):
        run(f"iptables-nft -t nat -N CILIUM_{number}")
    run("ip link add cilium_host type bridge")
    run("ip6tables-nft -t nat -N KUBE-NODEPORTS")
    found = other_proxies()
    assert {proxy: len(traces) for proxy, traces in found.items()} == {"Cilium": MOST, "kube-proxy": 1}


def test_many_chains_of_one_proxy_do_not_hide_another() -> None:
    """Among thousands of other chains, in many parts of the kernel's answer, a trace is found."""
    chains = "".join(f"add chain ip nat KUBE-SVC-{number:016d}\n" for number in range(3000))
    text = f"add table ip nat\n{chains}add chain ip nat KUBE-SERVICES\n"
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, env={"PATH": PATH})
    assert other_proxies() == {"kube-proxy": ["the chain KUBE-SERVICES in the table ip nat (iptables or ipvs mode)"]}


def test_without_permission_that_is_said(as_nobody: Run) -> None:
    """Without permission the error says so."""
    code = (
        "from nftproxy.kernel.others.other_proxies import *\n"
        "try: print(other_proxies())\n"
        "except Unavailable as error: print('Unavailable:', error)"
    )
    assert as_nobody(code).startswith("Unavailable: no permission")
