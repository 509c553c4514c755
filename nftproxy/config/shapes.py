"""The fields of a KubeProxyConfiguration that are used, and their types.  parse_config.py judges their values.

A duration is an `object` here: its text is judged where the field's path is known.
"""

from __future__ import annotations

from nftproxy.api.decode import Shape


class ClientConnection(Shape):
    """The field of the section `clientConnection` that is used."""

    kubeconfig: str | None = None


class DetectLocal(Shape):
    """The interfaces of local pods, for detectLocalMode."""

    bridge_interface: str | None = None
    interface_name_prefix: str | None = None


class Mode(Shape):
    """The fields that every mode has in its section."""

    masquerade_bit: int | None = None
    masquerade_all: bool | None = None
    sync_period: object = None
    min_sync_period: object = None


class Ipvs(Shape):
    """The fields of this section that kube-proxy uses in IPVS mode."""

    scheduler: str | None = None
    sync_period: object = None
    min_sync_period: object = None


class LoggingSection(Shape):
    """The fields of the section `logging` that are used."""

    format: str | None = None
    verbosity: int | None = None


class ConntrackSection(Shape):
    """Limits and timeouts of connection tracking."""

    max_per_core: int | None = None
    min: int | None = None
    tcp_established_timeout: object = None
    tcp_close_wait_timeout: object = None
    tcp_be_liberal: bool | None = None
    udp_timeout: object = None
    udp_stream_timeout: object = None


class Nftproxy(Shape):
    """The fields that kube-proxy doesn't have, without those that extensions declare (declared_fields.py)."""

    masquerade_fully_random: bool | None = None
    protected_ports: list[object] | None = None
    external_ip_cidrs: list[object] | None = None
    service_proxy_name: str | None = None
    startup_taint: str | None = None
    element_budget: int | None = None
    agent_socket: str | None = None


class KubeProxyConfiguration(Shape):
    """The fields of the whole file."""

    api_version: str | None = None
    kind: str | None = None
    mode: str | None = None
    client_connection: ClientConnection | None = None
    hostname_override: str | None = None
    bind_address: str | None = None
    healthz_bind_address: str | None = None
    metrics_bind_address: str | None = None
    bind_address_hard_fail: bool | None = None
    cluster_cidr: str | None = None
    detect_local_mode: str | None = None
    detect_local: DetectLocal | None = None
    node_port_addresses: list[object] | None = None
    conntrack: ConntrackSection | None = None
    oom_score_adj: int | None = None
    feature_gates: dict[str, object] | None = None
    nftables: Mode | None = None
    iptables: Mode | None = None
    ipvs: Ipvs | None = None
    logging: LoggingSection | None = None
    nftproxy: Nftproxy | None = None
