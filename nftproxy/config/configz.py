"""The configuration in force, as /configz shows it: a KubeProxyConfiguration again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network

import msgspec

from nftproxy.config.declared_fields import declared_texts
from nftproxy.config.durations import duration_text
from nftproxy.config.parse_config import API_VERSION, EXTERNAL_IPS_GATE, KIND, LOCALHOST_GATE
from nftproxy.model.addresses import ANY, LOCALHOST, Family
from nftproxy.model.settings import Config, NodePortAddresses

DIGEST = 8
"""Hexadecimal digits of a digest of the configuration."""


def configz(config: Config) -> bytes:
    """Return a KubeProxyConfiguration under the name of its API group (component-base/configz).

    Parsing it as a configuration file gives the same configuration.
    """
    conntrack = config.conntrack
    node_port_addresses = node_port_addresses_texts(config.node_port_addresses)
    return msgspec.json.encode(
        {
            API_VERSION.partition("/")[0]: {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "mode": "nftables",
                "clientConnection": {"kubeconfig": config.kubeconfig},
                "hostnameOverride": config.hostname_override,
                "bindAddress": config.bind_address or ANY[Family.IPV4],
                "healthzBindAddress": config.healthz_bind_address,
                "metricsBindAddress": config.metrics_bind_address,
                "bindAddressHardFail": config.bind_address_hard_fail,
                "clusterCIDR": ",".join(map(str, config.cluster_cidrs)),
                "detectLocalMode": config.detect_local_mode.value,
                "detectLocal": {
                    "bridgeInterface": config.bridge_interface,
                    "interfaceNamePrefix": config.interface_name_prefix,
                },
                # Localhost alone, without its feature gate, leaves no address.  An empty list would mean "primary".
                "nodePortAddresses": node_port_addresses or ["localhost"],
                "conntrack": {
                    "maxPerCore": conntrack.max_per_core,
                    "min": conntrack.min,
                    "tcpEstablishedTimeout": duration_text(conntrack.tcp_established_timeout),
                    "tcpCloseWaitTimeout": duration_text(conntrack.tcp_close_wait_timeout),
                    "tcpBeLiberal": conntrack.tcp_be_liberal,
                    "udpTimeout": duration_text(conntrack.udp_timeout),
                    "udpStreamTimeout": duration_text(conntrack.udp_stream_timeout),
                },
                "oomScoreAdj": config.oom_score_adj,
                "logging": {"format": config.logging.format.value, "verbosity": config.logging.verbosity},
                "featureGates": {
                    EXTERNAL_IPS_GATE: config.allow_service_external_ips,
                    LOCALHOST_GATE: config.allow_localhost_node_ports,
                },
                "nftables": {
                    "masqueradeAll": config.masquerade_all,
                    "masqueradeBit": config.masquerade_bit,
                    "syncPeriod": duration_text(config.sync_period),
                    "minSyncPeriod": duration_text(config.min_sync_period),
                },
                "nftproxy": {
                    "masqueradeFullyRandom": config.masquerade_fully_random,
                    "protectedPorts": list(map(str, config.protected_ports)),
                    "externalIPCIDRs": list(map(str, config.external_ip_cidrs)),
                    "serviceProxyName": config.service_proxy_name,
                    "startupTaint": config.startup_taint,
                    **declared_texts(config),
                    "elementBudget": config.element_budget,
                    "agentSocket": config.agent_socket,
                },
            }
        }
    )


def configuration_digest(config: Config) -> str:
    """Return a short digest of a configuration, in which nodes of the same configuration agree."""
    whole = configz(msgspec.structs.replace(config, hostname_override=""))
    return hashlib.sha256(whole).hexdigest()[:DIGEST]


def node_port_addresses_texts(addresses: NodePortAddresses) -> list[str]:
    """Return the entries of nodePortAddresses for these addresses."""
    both = addresses.localhost == set(Family)
    localhost: Iterable[object] = (
        ["localhost"] if both else map(ip_network, (LOCALHOST[f] for f in addresses.localhost))
    )
    return ["primary"] * addresses.primary + list(map(str, (*addresses.networks, *localhost)))


def changed_fields(old: Config, new: Config) -> list[str]:
    """Return a line for each field of the configuration file that differs, with both values."""
    before, after = _fields(old), _fields(new)
    return [f"{name} from {before[name]} to {after[name]}" for name in before if before[name] != after[name]]


def _fields(config: Config) -> dict[str, str]:
    """Return the values of all fields as JSON, by their paths."""
    (document,) = msgspec.json.decode(configz(config)).values()
    return dict(_flat(document))


def _flat(document: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", msgspec.json.encode(value).decode()
