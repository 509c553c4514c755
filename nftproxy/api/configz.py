"""The configuration in force, as /configz shows it: a KubeProxyConfiguration again."""

from __future__ import annotations

import msgspec

from nftproxy.api.config import API_VERSION, KIND
from nftproxy.model.addresses import ANY, Family
from nftproxy.model.settings import Config


def configz(config: Config) -> bytes:
    """The configuration in force as a KubeProxyConfiguration, under the name of its API group (component-base/configz).

    Reading it as a configuration file gives the same configuration.
    """
    conntrack = config.conntrack
    addresses = config.node_port_addresses
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
                "nodePortAddresses": ["primary"] if addresses is None else list(map(str, addresses)),
                "conntrack": {
                    "maxPerCore": conntrack.max_per_core,
                    "min": conntrack.min,
                    "tcpEstablishedTimeout": _duration(conntrack.tcp_established_timeout),
                    "tcpCloseWaitTimeout": _duration(conntrack.tcp_close_wait_timeout),
                    "tcpBeLiberal": conntrack.tcp_be_liberal,
                    "udpTimeout": _duration(conntrack.udp_timeout),
                    "udpStreamTimeout": _duration(conntrack.udp_stream_timeout),
                },
                "oomScoreAdj": config.oom_score_adj,
                "logging": {"format": config.logging.format.value, "verbosity": config.logging.verbosity},
                "featureGates": {"AllowServiceExternalIPs": config.allow_service_external_ips},
                "nftables": {
                    "masqueradeAll": config.masquerade_all,
                    "masqueradeBit": config.masquerade_bit,
                    "syncPeriod": _duration(config.sync_period),
                    "minSyncPeriod": _duration(config.min_sync_period),
                },
            }
        }
    )


def _duration(seconds: float) -> str:
    """A duration as Go reads it, to the nanosecond."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
