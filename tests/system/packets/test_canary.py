"""A proxy that serves just some Services, beside one that serves the others: each as if it were alone.

The other one's rules are made of what kube-proxy 1.36 writes for two Services, one of them without endpoints, in
nftables mode (pkg/proxy/nftables) and in iptables mode (pkg/proxy/iptables).
"""

from __future__ import annotations

import pytest

from nftproxy.lab import NODE, PORT_UNREACHABLE, TCP_RESET, UNTOUCHED, Lab, Origin
from nftproxy.lab.topology import CLUSTER_CIDR, CLUSTER_CIDR6, SERVICE_CIDR, SERVICE_CIDR6
from tests.support.factories import service, slice_of
from tests.system.packets.cluster import IP, IP6, Cluster, Connecting, Ip, Outcomes, at, everywhere, seen

NFTABLES = """
table {ip} kube-proxy {{
  comment "rules for kube-proxy"
  set cluster-ips {{
    typeof {ip} daddr
    elements = {{ {vip2}, {empty} }}
  }}
  set nodeport-ips {{
    typeof {ip} daddr
    elements = {{ {node} }}
  }}
  map no-endpoint-services {{
    typeof {ip} daddr . meta l4proto . th dport : verdict
    elements = {{ {empty} . tcp . 80 : goto reject-chain }}
  }}
  map service-ips {{
    typeof {ip} daddr . meta l4proto . th dport : verdict
    elements = {{ {vip2} . tcp . 80 : goto service-QWRT4FMG-shop/other/tcp/http }}
  }}
  map service-nodeports {{
    typeof meta l4proto . th dport : verdict
    elements = {{ tcp . 30090 : goto external-QWRT4FMG-shop/other/tcp/http }}
  }}
  chain filter-input {{
    type filter hook input priority 0
    ct state new jump service-endpoints-check
  }}
  chain filter-forward {{
    type filter hook forward priority 0
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }}
  chain filter-output {{
    type filter hook output priority 0
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }}
  chain nat-prerouting {{
    type nat hook prerouting priority -100
    jump services
  }}
  chain nat-output {{
    type nat hook output priority -100
    jump services
  }}
  chain nat-postrouting {{
    type nat hook postrouting priority 100
    jump masquerading
  }}
  chain cluster-ips-check {{
    {ip} daddr @cluster-ips reject
    {ip} daddr {service_cidr} drop
  }}
  chain service-endpoints-check {{
    {ip} daddr . meta l4proto . th dport vmap @no-endpoint-services
  }}
  chain services {{
    {ip} daddr . meta l4proto . th dport vmap @service-ips
    {ip} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
  }}
  chain mark-for-masquerade {{
    meta mark set meta mark | 0x4000
  }}
  chain masquerading {{
    meta mark & 0x4000 == 0 return
    meta mark set meta mark ^ 0x4000
    masquerade fully-random
  }}
  chain reject-chain {{
    reject
  }}
  chain service-QWRT4FMG-shop/other/tcp/http {{
    {ip} daddr {vip2} tcp dport 80 {ip} saddr != {pod_cidr} jump mark-for-masquerade
    numgen random mod 1 vmap {{ 0 : goto endpoint-5OJB2KTY-shop/other/tcp/http__away }}
  }}
  chain external-QWRT4FMG-shop/other/tcp/http {{
    jump mark-for-masquerade
    goto service-QWRT4FMG-shop/other/tcp/http
  }}
  chain endpoint-5OJB2KTY-shop/other/tcp/http__away {{
    {ip} saddr {away} jump mark-for-masquerade
    meta l4proto tcp dnat to {endpoint}
  }}
}}
"""

IPTABLES = """\
*nat
:KUBE-EXT-CEZPIJSAUFW5MYPQ - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-54IUPJM2TTG4TKF2 - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-CEZPIJSAUFW5MYPQ - [0:0]
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-EXT-CEZPIJSAUFW5MYPQ -m comment --comment "masquerade traffic for shop/other:http" -j KUBE-MARK-MASQ
-A KUBE-EXT-CEZPIJSAUFW5MYPQ -j KUBE-SVC-CEZPIJSAUFW5MYPQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/other:http" -m tcp --dport 30090 -j KUBE-EXT-CEZPIJSAUFW5MYPQ
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SEP-54IUPJM2TTG4TKF2 -s {away} -m comment --comment "shop/other:http" -j KUBE-MARK-MASQ
-A KUBE-SEP-54IUPJM2TTG4TKF2 -p tcp -m comment --comment "shop/other:http" -m tcp -j DNAT --to-destination {endpoint}
-A KUBE-SERVICES -d {vip2} -p tcp -m comment --comment "shop/other:http" -m tcp --dport 80 -j KUBE-SVC-CEZPIJSAUFW5MYPQ
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-CEZPIJSAUFW5MYPQ ! -s {pod_cidr} -d {vip2} -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-CEZPIJSAUFW5MYPQ -j KUBE-SEP-54IUPJM2TTG4TKF2
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-SERVICES -d {empty} -p tcp -m comment --comment "shop/empty has no endpoints" -m tcp --dport 80 -j REJECT
COMMIT
"""


class Tried(Connecting):
    """Connections through whatever rules are there."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab


def empty(ip: Ip) -> str:
    """The ClusterIP of the other proxy's Service without endpoints."""
    return "fd00:96::30" if ip.is_ipv6 else "10.96.0.30"


def load_its(lab: Lab, mode: str) -> None:
    """Write the other proxy's rules for both families beside those that are there."""
    for ip, pods, services in ((IP, CLUSTER_CIDR, SERVICE_CIDR), (IP6, CLUSTER_CIDR6, SERVICE_CIDR6)):
        facts = {
            "ip": ip.nft,
            "vip2": ip.vip2,
            "empty": empty(ip),
            "node": ip.node,
            "away": ip.away,
            "endpoint": f"[{ip.away}]:8080" if ip.is_ipv6 else f"{ip.away}:8080",
            "pod_cidr": pods,
            "service_cidr": services,
        }
        if mode == "nftables":
            lab.load(NFTABLES.format(**facts))
        else:
            tool = "ip6tables-nft-restore" if ip.is_ipv6 else "iptables-nft-restore"
            lab.node.run([f"/usr/sbin/{tool}", "--noflush"], IPTABLES.format(**facts))


def load_ours(lab: Lab) -> None:
    """Write the rules of a canary with one Service, of whose two ports one has no endpoint."""
    ports = ["http:80:30080/tcp", "empty:81/tcp"]
    Cluster(
        lab,
        service(cluster_ips=[IP.vip, IP6.vip], type="NodePort", ports=ports),
        *(slice_of(endpoints=[f"{ip.here}@node-a"], ports=["http:8080"], suffix=ip.nft) for ip in (IP, IP6)),
        service_proxy_name="canary",
    )


Seen = dict[str, dict[Origin, Outcomes]]


def of_ours(lab: Lab, ip: Ip) -> Seen:
    """What becomes of connections to the canary's Service."""
    tried = Tried(lab)
    return {
        "ClusterIP": tried.by_origin(ip.vip, times=4),
        "node port": tried.by_origin(ip.node, 30080, times=4),
        "no endpoints": tried.by_origin(ip.vip, 81, times=4),
    }


def of_its(lab: Lab, ip: Ip) -> Seen:
    """What becomes of connections to the other proxy's Services, and to what is nobody's."""
    tried = Tried(lab)
    return {
        "ClusterIP": tried.by_origin(ip.vip2, times=4),
        "node port": tried.by_origin(ip.node, 30090, times=4),
        "no endpoints": tried.by_origin(empty(ip), times=4),
        "ClusterIP of no Service": tried.by_origin(ip.unallocated, times=4),
        "port of the node": tried.by_origin(ip.node, 30099, times=4),
    }


each_mode = pytest.mark.parametrize("mode", ["nftables", "iptables"])


@each_mode
@pytest.mark.parametrize("last", ["ours", "its"])
def test_both_proxies_services_work_at_once(lab: Lab, mode: str, last: str) -> None:
    """Whichever proxy writes its rules last, every connection goes where it goes with one of the two proxies alone."""
    load_its(lab, mode)
    its_alone = {ip: of_its(lab, ip) for ip in (IP, IP6)}
    lab.reset()
    lab.add_address(IP.own)
    lab.add_address(IP6.own)
    load_ours(lab)
    ours_alone = {ip: of_ours(lab, ip) for ip in (IP, IP6)}
    if last == "ours":
        lab.node.forget()
        load_its(lab, mode)
        load_ours(lab)
    else:
        load_its(lab, mode)
    for ip in (IP, IP6):
        assert of_ours(lab, ip) == ours_alone[ip]
        assert of_its(lab, ip) == its_alone[ip]
        masqueraded = at(ip.here, masqueraded=True)
        assert ours_alone[ip]["ClusterIP"] == seen(
            at(ip.here), at(ip.here), masqueraded, masqueraded
        )  # pods' sources are kept
        assert ours_alone[ip]["no endpoints"] == everywhere(TCP_RESET)
        assert its_alone[ip]["node port"] == everywhere(at(ip.away, masqueraded=True))
        assert its_alone[ip]["no endpoints"] == everywhere(PORT_UNREACHABLE)


def test_what_no_service_has_is_left_to_the_other_proxy(lab: Lab) -> None:
    """A canary's rules touch neither ClusterIPs of no Service nor those of Services that aren't its own."""
    load_ours(lab)
    for ip in (IP, IP6):
        for address in (ip.unallocated, ip.vip2):
            assert Tried(lab).by_origin(address, times=2) == everywhere(UNTOUCHED)
        assert Tried(lab).by_origin(ip.node, 30099, times=2) == everywhere(NODE)
