"""Dumps of the rules of kube-proxy and of other programs, with placeholders for the values of a family.

kube_proxy/others.rules    the kubelet, flannel, kube-router, CNI's portmap, docker and an administrator
kube_proxy/iptables.rules  kube-proxy's iptables mode
kube_proxy/ipvs.rules      kube-proxy's IPVS mode
kube_proxy/canary.nft      kube-proxy 1.36 with two Services, of which one has no endpoints
kube_proxy/canary.rules    the same in iptables mode
"""

from __future__ import annotations

import subprocess
from pathlib import Path

DUMPS = Path(__file__).parent / "kube_proxy"
FOREIGN, IPTABLES_MODE, IPVS_MODE = ((DUMPS / f"{name}.rules").read_text() for name in ("others", "iptables", "ipvs"))

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


def run(command: str, text: str = "") -> str:
    """Run a command in the test's namespace."""
    path = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
    done = subprocess.run(command.split(), input=text, capture_output=True, text=True, check=False, env=path)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def restore(tool: str, dump: str, options: str = "--noflush") -> None:
    """Add a dump's rules to the existing rules."""
    family = tool.split("-")[0]
    text = dump.format(**VALUES[family]).replace("-s [fd00:1::4]", "-s fd00:1::4").replace("-d [", "-d ")
    run(f"{tool}-restore {options}", text.replace("fd00:1::4] -j KUBE-NW", "fd00:1::4 -j KUBE-NW"))
