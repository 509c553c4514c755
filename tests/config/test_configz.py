"""The configuration in force is shown as a configuration file that says the same."""

from __future__ import annotations

import json

import pytest

from nftproxy.config.configz import changed_fields, configz
from nftproxy.config.parse_config import parse_config
from nftproxy.extensions.fast_path.fields import FastPathScope
from nftproxy.installed_fields import FIELDS
from nftproxy.model.addresses import Address, AddressRange, parse_network
from nftproxy.model.settings import Config, Conntrack, DetectLocalMode, LogFormat, Logging, NodePortAddresses, PortRange
from tests.support.factories import full_config, node_port_addresses

CONFIGS = {
    "default": full_config(),
    "one localhost": full_config(node_port_addresses=node_port_addresses("all", "127.0.0.1/32")),
    "the other localhost": full_config(node_port_addresses=node_port_addresses("::1/128")),
    "no localhost, by its feature gate": full_config(
        node_port_addresses=NodePortAddresses(primary=False), allow_localhost_node_ports=False
    ),
    "other": full_config(
        masquerade_all=True,
        masquerade_bit=7,
        masquerade_fully_random=True,
        detect_local_mode=DetectLocalMode.INTERFACE_NAME_PREFIX,
        cluster_cidrs=(parse_network("10.1.0.0/16"), parse_network("fd00:1::/48")),
        bridge_interface="br0",
        interface_name_prefix="veth",
        node_port_addresses=node_port_addresses("primary", "192.168.0.0/16", "::/0", "localhost"),
        allow_service_external_ips=False,
        hostname_override="node-a",
        bind_address=Address("192.168.0.2"),
        kubeconfig="/etc/kubeconfig",
        sync_period=3723.5,
        min_sync_period=0.000001,
        logging=Logging(LogFormat.JSON, 4),
        healthz_bind_address="[::]:1",
        metrics_bind_address="192.168.0.2:65535",
        bind_address_hard_fail=True,
        oom_score_adj=0,
        conntrack=Conntrack(0, 1, 0.0, 0.5, 30.0, 180.0, tcp_be_liberal=True),
        protected_ports=(PortRange(1, 65535),),
        external_ip_cidrs=(parse_network("203.0.113.0/24"),),
        service_proxy_name="canary",
        startup_taint="nftproxy.dev/not-ready",
        service_counts=True,
        masquerade_address=(AddressRange(Address("192.0.2.1"), Address("192.0.2.4")), "eth1"),
        fast_path_interfaces=("eth0", "veth*"),
        fast_path_connections=FastPathScope.ALL,
        agent_socket="",
    ),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_configz(config: Config) -> None:
    """Parsing /configz as a configuration file gives the configuration in force, under its API group."""
    told = json.loads(configz(config))
    assert list(told) == ["kubeproxy.config.k8s.io"]
    assert parse_config(told["kubeproxy.config.k8s.io"], "configz", FIELDS) == (config, [])


def test_changed_fields_are_named_with_both_values() -> None:
    """Each field that differs is named by its path in the file, and the same configuration has none."""
    changed = changed_fields(full_config(), full_config(sync_period=10.0, oom_score_adj=-5, startup_taint="a/b"))
    assert changed == [
        "oomScoreAdj from -999 to -5",
        'nftables.syncPeriod from "30s" to "10s"',
        'nftproxy.startupTaint from "" to "a/b"',
    ]
    assert changed_fields(full_config(), full_config()) == []
    assert len(changed_fields(CONFIGS["default"], CONFIGS["other"])) > 20
