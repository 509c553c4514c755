"""What is wrong with the node."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from nftproxy.agent import node_watch
from nftproxy.agent.node_watch import local_sources_fault, not_forwarded, without_node_ports
from nftproxy.model.addresses import Address, Family
from nftproxy.model.settings import DetectLocalMode
from tests.support.factories import host_addresses, node, pipeline, service, slice_of

OFF = {"ipv4/ip_forward": 0, "ipv6/conf/all/forwarding": 0}


def test_families_with_services_must_be_forwarded() -> None:
    """A family is named if it has Services and its sysctl is 0, and not where the sysctl can't be read."""
    made = pipeline(service(), slice_of())
    assert not_forwarded(made, lambda _: OFF) == {Family.IPV4: "ipv4/ip_forward"}
    assert not_forwarded(made, lambda _: OFF | {"ipv4/ip_forward": 1}) == {}
    assert not_forwarded(made, lambda _: {}) == {}
    assert not_forwarded(pipeline(), lambda _: OFF) == {}


async def test_local_sources_by_an_interface_need_it() -> None:
    """A name or prefix that no interface has is a fault on a node with pods, with the names that there are."""
    pods, none = (slice_of("shop/web", [each]) for each in ("10.1.0.4@node-a", "10.1.1.4@node-b"))
    by_name: dict[str, Any] = {"detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE, "bridge_interface": "cbr0"}
    by_prefix: dict[str, Any] = {
        "detect_local_mode": DetectLocalMode.INTERFACE_NAME_PREFIX,
        "interface_name_prefix": "cali",
    }
    made = pipeline(service(), pods, **by_name)
    fault = await local_sources_fault(made, ["lo", "cni0"], [])
    assert fault.startswith("no interface has the name cbr0 (detectLocal.bridgeInterface)")
    assert fault.endswith("the interfaces are cni0, lo")
    assert await local_sources_fault(made, ["lo", "cbr0"], []) == ""
    assert await local_sources_fault(made, ["lo", "cni0"], [Address("10.1.0.4")]) == "", (
        "a server in the node's network is no pod"
    )
    assert await local_sources_fault(pipeline(service(), none, **by_name), ["lo"], []) == ""
    prefixed = pipeline(service(), pods, **by_prefix)
    assert "begins with cali" in await local_sources_fault(prefixed, ["lo", "eth0"], [])
    assert await local_sources_fault(prefixed, ["lo", "cali123"], []) == ""


async def test_node_ports_need_an_address_of_the_node() -> None:
    """A family with node ports is named if the Node has no address of it, and not without such a Service."""
    served, plain = service("shop/web", type="NodePort", ports=["80:30080/tcp"]), service("shop/admin")
    bare = node(internal_ips=[])
    nowhere = {
        Family.IPV4: "the Node node-a has no InternalIP or ExternalIP of IPv4: nothing here serves node ports of "
        "shop/web, nor others of the family"
    }
    assert await without_node_ports(pipeline(plain, served, node=bare)) == nowhere
    assert await without_node_ports(pipeline(plain, node=bare)) == {}
    assert await without_node_ports(pipeline(served, node=node(internal_ips=["fd00::1"]))) == nowhere
    (loopback,) = (await without_node_ports(pipeline(served, node=node(internal_ips=["127.0.0.1"])))).values()
    assert loopback.startswith("the Node node-a has only loopback addresses of IPv4: ")
    assert await without_node_ports(pipeline(served, node=node(internal_ips=[], external_ips=["192.0.2.1"]))) == {}
    assert await without_node_ports(pipeline(served, node=None)) == {}, "the Node may not be known yet"
    assert await without_node_ports(pipeline(served, node=bare, node_port_addresses=["198.51.100.0/24"])) == {}, (
        "ranges may be meant to select no address here"
    )


async def test_node_ports_need_an_address_that_is_here() -> None:
    """An ExternalIP on no interface, as behind address translation, serves no node ports.  Ranges may add another."""
    served = service("shop/web", type="NodePort", ports=["80:30080/tcp"])
    outside, own = node(internal_ips=[], external_ips=["192.0.2.1"]), [Address("192.168.0.2")]
    (why,) = (await without_node_ports(pipeline(served, node=outside), own)).values()
    assert why.startswith("no interface here has 192.0.2.1, the only address of the Node node-a for node ports: ")
    assert await without_node_ports(pipeline(served, node=outside), [*own, Address("192.0.2.1")]) == {}
    assert await without_node_ports(pipeline(served, node=outside)) == {}, "the interfaces can't be read"
    absent = pipeline(served, node=node(internal_ips=["192.0.2.1"]))
    assert await without_node_ports(absent, own) == {}, "an absent InternalIP has its own warning"
    for ranges in (["primary", "192.168.0.0/24"], ["primary", "0.0.0.0/0"], ["primary", "localhost"]):
        made = pipeline(served, host_addresses("192.168.0.2"), node=outside, node_port_addresses=ranges)
        assert await without_node_ports(made, own) == {}


async def test_each_family_needs_a_pod_range() -> None:
    """With NodeCIDR a family with Services that the Node has no podCIDR of is a fault on a node with pods."""
    dual, pods = service(cluster_ips=["10.96.0.10", "fd00:96::10"]), slice_of(endpoints=["10.1.0.4@node-a"])
    by_node: dict[str, Any] = {"detect_local_mode": DetectLocalMode.NODE_CIDR}
    for cidrs, lacking in ((["10.1.0.0/24"], " of IPv6"), (["fd00:1::/64"], " of IPv4"), ([], "")):
        made = pipeline(dual, pods, node=node(pod_cidrs=cidrs), **by_node)
        fault = await local_sources_fault(made, ["lo"], [])
        assert fault.startswith(f"detectLocalMode is NodeCIDR, and the Node node-a has no podCIDR{lacking}, so pods ")
    assert await local_sources_fault(pipeline(dual, pods, **by_node), ["lo"], []) == ""
    one = pipeline(service(), pods, node=node(pod_cidrs=["10.1.0.0/24"]), **by_node)
    assert await local_sources_fault(one, ["lo"], []) == "", "no Service has the other family"


async def test_no_scan_of_all_objects_holds_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scans of all Services and of all EndpointSlices run in threads, not in the loop's."""
    seen = []

    def scan(*_given: object) -> None:
        seen.append(threading.current_thread() is threading.main_thread())

    monkeypatch.setattr(node_watch, "_has_pods", scan)
    monkeypatch.setattr(node_watch, "_first_with_node_ports", scan)
    by_name: dict[str, Any] = {"detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE, "bridge_interface": "cbr0"}
    made = pipeline(service(), slice_of(), node=node(internal_ips=[]), **by_name)
    assert await local_sources_fault(made, ["lo"], []) == ""
    assert await without_node_ports(made) == {}
    assert seen == [False, False]
