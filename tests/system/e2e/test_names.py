"""Which test here stands for which of Kubernetes' own (test/e2e/network), by their names, and what is asked beyond.

Those of its tests that are for the API server alone (allocation of addresses and ports, status, collections) or for a
cloud's load balancers have none.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import pytest

SERVICE: Mapping[str, str] = {
    "should serve a basic endpoint from pods": "services.basic_endpoints",
    "should serve multiport endpoints from pods": "services.multi_port_endpoints",
    "should be updated after adding or deleting ports": "services.ports_added_and_removed",
    "should preserve source pod IP for traffic thru service cluster IP": "services.source_address_is_kept"
    " real_nodes.real_source_address_is_kept",
    "should allow pods to hairpin back to themselves through services": "services.hairpin real_nodes.real_hairpin",
    "should be able to up and down services": "services.up_and_down",
    "should work after the service has been recreated": "services.recreated",
    "should work after restarting kube-proxy": "real_nodes.proxy_restarts",
    "should work after restarting apiserver": "real_nodes.api_server_restarts",
    "should be able to create a functioning NodePort service": "services.node_port real_nodes.served_on_every_node",
    "should be possible to connect to a service via ExternalIP when the external IP is not assigned to a node":
        "services.external_ip",
    "should be able to update service type to NodePort listening on same port number but different protocols":
        "services.same_port_tcp_and_udp services.becomes_node_port_for_two_protocols",
    "should serve endpoints on same port and different protocols": "services.same_port_tcp_and_udp",
    "should be able to change the type from ExternalName to ClusterIP":
        "services.external_name_becomes_cluster_ip_and_back",
    "should be able to change the type from ExternalName to NodePort":
        "services.external_name_becomes_node_port_and_back",
    "should be able to change the type from ClusterIP to ExternalName":
        "services.external_name_becomes_cluster_ip_and_back",
    "should be able to change the type from NodePort to ExternalName":
        "services.external_name_becomes_node_port_and_back",
    "should create endpoints for unready pods": "services.publish_not_ready_addresses",
    "should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is true":
        "services.publish_not_ready_addresses",
    "should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is false":
        "services.publish_not_ready_addresses",
    "should have session affinity work for service with type clusterIP": "affinity.affinity",
    "should have session affinity timeout work for service with type clusterIP": "affinity.affinity_timeout",
    "should be able to switch session affinity for service with type clusterIP": "affinity.affinity_switched",
    "should have session affinity work for NodePort service": "affinity.affinity",
    "should have session affinity timeout work for NodePort service": "affinity.affinity_timeout",
    "should be able to switch session affinity for NodePort service": "affinity.affinity_switched",
    "should implement service.kubernetes.io/service-proxy-name": "services.labels_toggled",
    "should implement service.kubernetes.io/headless": "services.labels_toggled",
    "should be rejected when no endpoints exist": "services.refused_without_endpoints",
    "should be rejected for evicted pods (no endpoints exist)": "services.refused_without_endpoints",
    "should respect internalTrafficPolicy=Local Pod to Pod": "policies.internal_policy_local"
    " real_nodes.internal_policy_local_real",
    "should respect internalTrafficPolicy=Local Pod (hostNetwork: true) to Pod": "policies.internal_policy_local"
    " real_nodes.internal_policy_local_real",
    "should respect internalTrafficPolicy=Local Pod and Node, to Pod (hostNetwork: true)":
        "real_nodes.internal_policy_local_to_host_network",
    "should fail health check node port if there are only terminating endpoints":
        "policies.health_check_with_only_terminating_endpoints",
    "should fallback to terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Cluster":
        "policies.terminating_internal_cluster",
    "should fallback to local terminating endpoints when there are no ready endpoints with"
    " internalTrafficPolicy=Local":
        "policies.terminating_internal_local",
    "should fallback to terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Cluster":
        "policies.terminating_external_cluster",
    "should fallback to local terminating endpoints when there are no ready endpoints with"
    " externalTrafficPolicy=Local": "policies.terminating_external_local",
}  # fmt: skip

LOAD_BALANCER: Mapping[str, str] = {
    "should only allow access from service loadbalancer source ranges": "services.source_ranges",
    "should work for type=LoadBalancer": "policies.external_policy_local",
    "should work for type=NodePort": "real_nodes.external_policy_local_real",
    "should only target nodes with endpoints": "policies.health_check_on_three_nodes",
    "should work from pods": "policies.external_policy_local",
    "should handle updates to ExternalTrafficPolicy field": "policies.external_policy_changes"
    " policies.health_check_follows_policy",
    "should have session affinity work for LoadBalancer service with Local traffic policy":
        "affinity.affinity_with_external_policy_local",
    "should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on different nodes":
        "real_nodes.udp_server_pod_cycles conntrack.server_pod_cycles_behind_a_load_balancer",
    "should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on the same nodes":
        "conntrack.server_pod_cycles_behind_a_load_balancer",
    "should not have connectivity disruption during rolling update with externalTrafficPolicy=Cluster":
        "real_nodes.rolling_update",
    "should not have connectivity disruption during rolling update with externalTrafficPolicy=Local":
        "real_nodes.rolling_update",
}  # fmt: skip

CONNTRACK: Mapping[str, str] = {
    "should be able to preserve UDP traffic when server pod cycles for a NodePort service":
        "conntrack.server_pod_cycles real_nodes.udp_server_pod_cycles",
    "should be able to preserve UDP traffic when server pod cycles for a ClusterIP service":
        "conntrack.server_pod_cycles real_nodes.udp_server_pod_cycles",
    "should be able to preserve UDP traffic when server pod cycles for a ClusterIP service and client is hostNetwork":
        "conntrack.server_pod_cycles",
    "should be able to preserve UDP traffic when initial unready endpoints get ready":
        "conntrack.endpoints_become_ready",
}  # fmt: skip

OTHERS: Mapping[str, str] = {
    # endpointslice.go
    "should support a Service with multiple ports specified in multiple EndpointSlices":
        "services.several_slices_with_several_ports services.multi_port_endpoints",
    "should support a Service with multiple endpoint IPs specified in multiple EndpointSlices":
        "services.several_slices_with_several_ports",
    # service.go, kube_proxy.go
    "should allow creating a basic SCTP service with pod and endpoints": "services.sctp",
    "should set TCP CLOSE_WAIT timeout": "services.close_wait_timeout",
    # service_cidrs.go
    "should create Services and serve on different Service CIDRs": "services.several_service_cidrs",
    # traffic_distribution.go
    "should route traffic to an endpoint in the same zone when using PreferSameZone": "policies.traffic_distribution",
    "should route traffic to an endpoint on the same node or fall back to same zone when using PreferSameNode":
        "policies.traffic_distribution_prefers_the_node policies.traffic_distribution",
}  # fmt: skip

BEYOND: Mapping[str, str] = {
    "dual stack": "services.dual_stack services.single_stack",
    "endpoint ports change": "services.endpoint_ports_change",
    "endpoints in the nodes' own network": "real_nodes.host_network_endpoints",
    "terminating endpoints that don't serve": "policies.terminating_and_not_serving",
    "health checks through policy changes": "policies.health_check_follows_policy"
    " policies.health_check_tells_who_it_is_for",
    "affinity when endpoints go and when the proxy restarts": "affinity.affinity_ends_with_the_endpoint"
    " affinity.affinity_survives_a_restart",
    "the node's zone changes": "policies.traffic_distribution_follows_the_node",
    "UDP: the target port changes": "conntrack.target_port_changes",
    "UDP: some servers of many go": "conntrack.fewer_servers",
    "UDP: an address, a node port, the Service goes": "conntrack.cluster_ip_changes conntrack.node_port_changes"
    " conntrack.service_goes",
    "UDP: the flow came before the Service": "conntrack.flow_began_before_the_service",
    "UDP: the proxy was away": "conntrack.stale_at_start",
    "TCP connections outlive their endpoints": "real_nodes.tcp_outlives_its_endpoint",
}  # fmt: skip

NAMES = [(name, test) for table in (SERVICE, LOAD_BALANCER, CONNTRACK, OTHERS, BEYOND) for name, test in table.items()]


@pytest.mark.parametrize(("name", "tests"), NAMES, ids=[name for name, _ in NAMES])
def test_name_has_a_test(name: str, tests: str) -> None:
    """Whatever is asked of a service proxy has a test here."""
    assert tests, name
    for test in tests.split():
        module, _, function = test.partition(".")
        assert callable(getattr(importlib.import_module(f"tests.system.e2e.test_{module}"), f"test_{function}")), test


def test_every_test_has_a_name() -> None:
    """No test here stands for nothing."""
    named = {test for _, tests in NAMES for test in tests.split()}
    modules = ("affinity", "conntrack", "policies", "real_nodes", "services")
    there = {
        f"{module}.{name.removeprefix('test_')}"
        for module in modules
        for name in vars(importlib.import_module(f"tests.system.e2e.test_{module}"))
        if name.startswith("test_")
    }
    assert there == named
