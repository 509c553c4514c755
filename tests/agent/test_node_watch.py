"""What is wrong with the node."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from nftproxy.agent import node_watch
from nftproxy.agent.node_watch import local_sources_fault, not_forwarded, without_node_ports
from nftproxy.model.addresses import Address, Family
from nftproxy.model.settings import DetectLocalMode
from tests.support.factories import node, pipeline, service, slice_of

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
    assert await without_node_ports(pipeline(plain, served, node=bare)) == {Family.IPV4: "shop/web"}
    assert await without_node_ports(pipeline(plain, node=bare)) == {}
    assert await without_node_ports(pipeline(served, node=node(internal_ips=["fd00::1"]))) == {Family.IPV4: "shop/web"}
    assert await without_node_ports(pipeline(served, node=node(internal_ips=[], external_ips=["192.0.2.1"]))) == {}
    assert await without_node_ports(pipeline(served, node=None)) == {}, "the Node may not be known yet"
    assert await without_node_ports(pipeline(served, node=bare, node_port_addresses=["198.51.100.0/24"])) == {}, (
        "ranges may be meant to select no address here"
    )


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
