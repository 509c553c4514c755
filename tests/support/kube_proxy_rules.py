"""The rules of kube-proxy in iptables and IPVS mode, and of the programs beside it, as iptables-save prints them."""

from __future__ import annotations

import subprocess

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
