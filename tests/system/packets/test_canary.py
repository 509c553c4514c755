"""A proxy that serves just some Services, beside kube-proxy for the rest: each works as if it were alone."""

from __future__ import annotations

from string import Template

import pytest
from nftproxy_conformance.lab import NODE, PORT_UNREACHABLE, TCP_RESET, UNTOUCHED, Lab, Origin
from nftproxy_conformance.lab.topology import CLUSTER_CIDR, CLUSTER_CIDR6, SERVICE_CIDR, SERVICE_CIDR6

from tests.support.cluster import IP, IP6, Cluster, Ip, Outcomes, Prober, at, everywhere, masqueraded, pods, seen
from tests.support.factories import service
from tests.support.kube_proxy_rules import DUMPS

BOTH = (IP, IP6)
Seen = dict[str, dict[Origin, Outcomes]]


def empty(ip: Ip) -> str:
    """The ClusterIP of kube-proxy's Service without endpoints."""
    return "fd00:96::30" if ip.is_ipv6 else "10.96.0.30"


def load_kube_proxys(lab: Lab, mode: str) -> None:
    """Write kube-proxy's rules for both families beside the existing rules."""
    dump = Template((DUMPS / f"canary.{'nft' if mode == 'nftables' else 'rules'}").read_text())
    for ip, pod_cidr, service_cidr in ((IP, CLUSTER_CIDR, SERVICE_CIDR), (IP6, CLUSTER_CIDR6, SERVICE_CIDR6)):
        text = dump.substitute(
            ip=ip.nft,
            vip2=ip.vip2,
            empty=empty(ip),
            node=ip.node,
            away=ip.away,
            endpoint=f"[{ip.away}]:8080" if ip.is_ipv6 else f"{ip.away}:8080",
            pod_cidr=pod_cidr,
            service_cidr=service_cidr,
        )
        if mode == "nftables":
            lab.load(text)
        else:
            tool = "ip6tables-nft-restore" if ip.is_ipv6 else "iptables-nft-restore"
            lab.node.run([f"/usr/sbin/{tool}", "--noflush"], text)


def load_ours(lab: Lab) -> None:
    """Write the rules of a canary with a Service of two ports, of which the second has no endpoint."""
    ports = ["http:80:30080/tcp", "empty:81/tcp"]
    given = service(cluster_ips=[IP.vip, IP6.vip], type="NodePort", ports=ports)
    Cluster(lab, given, *(pods(ip, "here", suffix=ip.nft) for ip in BOTH), service_proxy_name="canary")


def of_ours(lab: Lab, ip: Ip) -> Seen:
    """The outcomes of connections to the canary's Service."""
    return {
        "ClusterIP": Prober(lab).by_origin(ip.vip, times=4),
        "node port": Prober(lab).by_origin(ip.node, 30080, times=4),
        "no endpoints": Prober(lab).by_origin(ip.vip, 81, times=4),
    }


def of_kube_proxys(lab: Lab, ip: Ip) -> Seen:
    """The outcomes of connections to kube-proxy's Services, and to addresses and ports of no Service."""
    return {
        "ClusterIP": Prober(lab).by_origin(ip.vip2, times=4),
        "node port": Prober(lab).by_origin(ip.node, 30090, times=4),
        "no endpoints": Prober(lab).by_origin(empty(ip), times=4),
        "ClusterIP of no Service": Prober(lab).by_origin(ip.unallocated, times=4),
        "port of the node": Prober(lab).by_origin(ip.node, 30099, times=4),
    }


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
@pytest.mark.parametrize("last", ["ours", "kube-proxy's"])
def test_both_proxies_services_work_at_once(lab: Lab, mode: str, last: str) -> None:
    """Whichever proxy writes its rules last, every connection goes where it goes with either proxy alone."""
    load_kube_proxys(lab, mode)
    alone = {ip: of_kube_proxys(lab, ip) for ip in BOTH}
    lab.reset()
    load_ours(lab)
    ours_alone = {ip: of_ours(lab, ip) for ip in BOTH}
    if last == "ours":
        lab.node.reset()
        load_kube_proxys(lab, mode)
        load_ours(lab)
    else:
        load_kube_proxys(lab, mode)
    for ip in BOTH:
        assert of_ours(lab, ip) == ours_alone[ip]
        assert of_kube_proxys(lab, ip) == alone[ip]
        hidden = masqueraded(ip.here)
        assert ours_alone[ip]["ClusterIP"] == seen(at(ip.here), at(ip.here), hidden, hidden)  # pods' sources are kept
        assert ours_alone[ip]["no endpoints"] == everywhere(TCP_RESET)
        assert alone[ip]["node port"] == everywhere(masqueraded(ip.away))
        assert alone[ip]["no endpoints"] == everywhere(PORT_UNREACHABLE)


def test_addresses_of_no_service_are_left_to_the_other_proxy(lab: Lab) -> None:
    """A canary's rules touch neither ClusterIPs of no Service nor ClusterIPs of Services that aren't its own."""
    load_ours(lab)
    for ip in BOTH:
        for address in (ip.unallocated, ip.vip2):
            assert Prober(lab).by_origin(address, times=2) == everywhere(UNTOUCHED)
        assert Prober(lab).by_origin(ip.node, 30099, times=2) == everywhere(NODE)
