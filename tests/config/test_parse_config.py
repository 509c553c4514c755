"""KubeProxyConfiguration: defaults, every field that counts, and every fault at once."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nftproxy.api.decode import show
from nftproxy.config.parse_config import parse_config
from nftproxy.extensions.algorithms.annotations import Algorithm
from nftproxy.extensions.algorithms.fields import DEFAULT_ALGORITHM
from nftproxy.extensions.external_addresses.fields import ExternalAddresses, Ping
from nftproxy.extensions.failover.annotations import Failover
from nftproxy.extensions.least_connections.annotations import WORD
from nftproxy.installed_fields import FIELDS
from nftproxy.model.addresses import Address, AddressRange, Family, parse_network
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.settings import (
    PROTECTED_PORTS,
    Config,
    Conntrack,
    DetectLocalMode,
    LogFormat,
    Logging,
    NodePortAddresses,
    PortRange,
)
from tests.support.factories import full_config, networks
from tests.support.words import ALGORITHMS

HEAD = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}

KUBEADM: dict[str, Any] = HEAD | yaml.safe_load("""
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null,
   udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, scheduler: "", strictARP: false, tcpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, networkName: "", sourceVip: ""}
""")
"""The file that kubeadm writes by default."""


def read(**fields: object) -> Config:
    """The configuration with these fields, which must be good and known."""
    config, warnings = parse_config(HEAD | fields, "", FIELDS)
    assert warnings == []
    return config


def faults(**fields: object) -> list[str]:
    """The faults of these fields."""
    with pytest.raises(BadInput) as caught:
        parse_config(HEAD | fields, "", FIELDS)
    return [f"{problem.field}: {problem.message}" for problem in caught.value.problems]


def test_defaults() -> None:
    """Nothing said is kube-proxy's defaults."""
    assert read() == full_config()


def test_what_kubeadm_writes() -> None:
    """Fields that are null, empty or zero count as absent, fields of other modes are known, and an empty mode warns."""
    config, warnings = parse_config(KUBEADM, "", FIELDS)
    assert config == full_config(
        kubeconfig="/var/lib/kube-proxy/kubeconfig.conf", cluster_cidrs=(parse_network("10.244.0.0/16"),)
    )
    assert [(each.code, each.field) for each in warnings] == [(Code.MODE_AS_NFTABLES, "mode")]


def test_every_field() -> None:
    """Each field of the file has its place."""
    config = read(
        mode="nftables",
        clientConnection={"kubeconfig": "/etc/kubeconfig"},
        hostnameOverride=" Node-A.example.com ",
        bindAddress="192.168.0.2",
        healthzBindAddress="192.168.0.2:1",
        metricsBindAddress="0.0.0.0:65535",
        bindAddressHardFail=True,
        clusterCIDR="10.244.0.0/16, fd00:244::/56",
        detectLocalMode="BridgeInterface",
        detectLocal={"bridgeInterface": "cni0", "interfaceNamePrefix": "veth"},
        nodePortAddresses=["192.168.0.0/16", "fd00::/8", "192.168.0.0/16"],
        conntrack={
            "maxPerCore": 0,
            "min": 1,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "1m",
            "udpTimeout": "30s",
            "udpStreamTimeout": "2m",
            "tcpBeLiberal": True,
        },
        oomScoreAdj=-1000,
        featureGates={"AllowServiceExternalIPs": False},
        logging={"format": "json", "verbosity": 4},
        nftables={"masqueradeAll": True, "masqueradeBit": 31, "syncPeriod": "1h", "minSyncPeriod": "200ms"},
        nftproxy={
            "masqueradeFullyRandom": True,
            "protectedPorts": [22, "2379-2380", "80"],
            "externalIPCIDRs": ["203.0.113.0/24", "2001:db8::/32"],
            "algorithm": "source-hash",
            "externalAddresses": "closed",
            "ping": "answer",
            "failover": ["silent"],
            "serviceCounts": True,
            "fastPath": {"interfaces": ["eth0", "veth*", "*", "eth0"]},
            "masqueradeAddress": ["192.0.2.1-192.0.2.4", "2001:db8::1", "eth1"],
            "agentSocket": "/run/other.sock",
        },
    )
    assert config == full_config(
        masquerade_all=True,
        masquerade_bit=31,
        masquerade_fully_random=True,
        detect_local_mode=DetectLocalMode.BRIDGE_INTERFACE,
        cluster_cidrs=(parse_network("10.244.0.0/16"), parse_network("fd00:244::/56")),
        bridge_interface="cni0",
        interface_name_prefix="veth",
        node_port_addresses=NodePortAddresses(primary=False, networks=networks(["192.168.0.0/16", "fd00::/8"])),
        allow_service_external_ips=False,
        hostname_override="node-a.example.com",
        bind_address=Address("192.168.0.2"),
        kubeconfig="/etc/kubeconfig",
        sync_period=3600.0,
        min_sync_period=0.2,
        healthz_bind_address="192.168.0.2:1",
        metrics_bind_address="0.0.0.0:65535",
        bind_address_hard_fail=True,
        oom_score_adj=-1000,
        conntrack=Conntrack(0, 1, 0.0, 60.0, 30.0, 120.0, True),
        logging=Logging(LogFormat.JSON, 4),
        protected_ports=(PortRange(22, 22), PortRange(2379, 2380), PortRange(80, 80)),
        external_ip_cidrs=(parse_network("203.0.113.0/24"), parse_network("2001:db8::/32")),
        external_addresses=ExternalAddresses.CLOSED,
        ping=Ping.ANSWER,
        algorithm=Algorithm.SOURCE_HASH,
        failover=frozenset({Failover.SILENT}),
        service_counts=True,
        fast_path_interfaces=("eth0", "veth*", "*"),
        masquerade_address=(
            AddressRange(Address("192.0.2.1"), Address("192.0.2.4")),
            AddressRange(Address("2001:db8::1"), Address("2001:db8::1")),
            "eth1",
        ),
        agent_socket="/run/other.sock",
    )


@pytest.mark.parametrize(
    ("scheduler", "algorithm"),
    [
        ("rr", Algorithm.ROUND_ROBIN),
        ("wrr", Algorithm.ROUND_ROBIN),
        ("sh", Algorithm.SOURCE_HASH),
        ("mh", Algorithm.SOURCE_HASH_WITH_PORT),
        ("lc", WORD),
        ("dh", Algorithm.RANDOM),
        ("odd", Algorithm.RANDOM),
        ("", None),
    ],
)
def test_the_scheduler_of_ipvs_mode(scheduler: str, algorithm: Enum | None) -> None:
    """In IPVS mode a named scheduler is the default algorithm, with a warning.  A named algorithm goes before it."""
    given = HEAD | {"mode": "ipvs", "ipvs": {"scheduler": scheduler}}
    config, warnings = parse_config(given, "", FIELDS)
    assert config[DEFAULT_ALGORITHM] is (algorithm or Algorithm.RANDOM)
    said = [each.message for each in warnings if each.code is Code.IPVS_SCHEDULER]
    assert [message.partition(", where")[0] for message in said] == (
        [f"{scheduler!r} becomes nftproxy.algorithm: {algorithm.value}"] if algorithm else []
    )
    config, warnings = parse_config(given | {"nftproxy": {"algorithm": "consistent-hash"}}, "", FIELDS)
    assert config[DEFAULT_ALGORITHM] is Algorithm.CONSISTENT_HASH
    assert Code.IPVS_SCHEDULER not in [each.code for each in warnings]


def test_old_spellings_are_read_with_a_warning() -> None:
    """Addresses and ranges that kube-proxy reads as decimal are read likewise, and a warning names the value."""
    given = {"clusterCIDR": "010.1.0.0/16", "nodePortAddresses": ["::ffff:192.168.0.0/112"], "bindAddress": "010.0.0.1"}
    config, warnings = parse_config(HEAD | given, "", FIELDS)
    assert config.cluster_cidrs == (parse_network("10.1.0.0/16"),)
    assert config.node_port_addresses.networks == (parse_network("192.168.0.0/16"),)
    assert config.bind_address == "10.0.0.1"
    assert sorted((each.field, each.message.partition(": newer")[0], each.code) for each in warnings) == [
        ("bindAddress", "'010.0.0.1' is read as 10.0.0.1", Code.OLD_SPELLING),
        ("clusterCIDR", "'010.1.0.0/16' is read as 10.1.0.0/16", Code.OLD_SPELLING),
        ("nodePortAddresses[0]", "'::ffff:192.168.0.0/112' is read as 192.168.0.0/16", Code.OLD_SPELLING),
    ]


def test_a_scheduler_counts_in_ipvs_mode_alone() -> None:
    """In other modes the scheduler has no effect."""
    config, warnings = parse_config(HEAD | {"mode": "nftables", "ipvs": {"scheduler": "sh"}}, "", FIELDS)
    assert config[DEFAULT_ALGORITHM] is Algorithm.RANDOM
    assert [(each.field, each.code) for each in warnings] == [("ipvs.scheduler", Code.CONFIGURATION_UNUSED)]


@pytest.mark.parametrize("mode", list(DetectLocalMode))
def test_detect_local_modes(mode: DetectLocalMode) -> None:
    """Each mode is known by the name that kube-proxy has for it."""
    detect_local = {"bridgeInterface": "br0", "interfaceNamePrefix": "cali"}
    assert read(detectLocalMode=mode.value, detectLocal=detect_local).detect_local_mode is mode


@pytest.mark.parametrize("given_addresses", [None, [], ["primary"]])
def test_node_ports_are_primary_by_default(given_addresses: object) -> None:
    """Without nodePortAddresses, and with "primary", node ports are served on the node's own addresses."""
    assert read(nodePortAddresses=given_addresses).node_port_addresses == NodePortAddresses(primary=True)


IPV4, IPV6 = Family.IPV4, Family.IPV6
NO_INTERFACE = "is not an interface's name (1 to {} of A-Z a-z 0-9 _ . @ -)"
NO_PORT = "is not a port from 1 to 65535, or a range of ports as in 2379-2380"
EVERYWHERE = ["0.0.0.0/0", "::/0"]


@pytest.mark.parametrize(
    ("given_addresses", "primary", "cidrs", "localhost"),
    [
        (["localhost"], False, [], {IPV4, IPV6}),
        (["primary", "localhost"], True, [], {IPV4, IPV6}),
        (["all"], False, EVERYWHERE, set()),
        (["localhost", "10.0.0.0/8", "all", "primary"], True, [*EVERYWHERE, "10.0.0.0/8"], {IPV4, IPV6}),
        (["10.0.0.0/8", "primary"], True, ["10.0.0.0/8"], set()),
        (["127.0.0.1/32"], False, [], {IPV4}),
        (["127.0.0.0/8", "primary"], True, [], {IPV4}),
        (["::1/128", "10.0.0.0/8"], False, ["10.0.0.0/8"], {IPV6}),
        (["126.0.0.0/7"], False, ["126.0.0.0/7"], set()),
        (["0.0.0.0/0"], False, ["0.0.0.0/0"], set()),
    ],
)
def test_where_node_ports_are_served(
    given_addresses: list[str], primary: bool, cidrs: list[str], localhost: set[Family]
) -> None:
    """Words and CIDRs add up.  A CIDR of loopback addresses asks for localhost, and a wider CIDR doesn't."""
    expected = NodePortAddresses(primary, networks(cidrs), frozenset(localhost))
    assert read(nodePortAddresses=given_addresses).node_port_addresses == expected


@pytest.mark.parametrize(("gate", "localhost"), [(True, {IPV4, IPV6}), (None, {IPV4, IPV6}), (False, set())])
def test_the_gate_of_localhost(gate: bool | None, localhost: set[Family]) -> None:
    """Asking for localhost is enough.  kube-proxy's feature gate, set to false, turns it off."""
    gates = {"KubeProxyNFTablesLocalhostNodePorts": gate}
    config = read(nodePortAddresses=["primary", "localhost"], featureGates=gates)
    assert config.node_port_addresses == NodePortAddresses(localhost=frozenset(localhost))


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::"])
def test_any_address_is_no_hint(address: str) -> None:
    """A bindAddress that says any address says nothing of the node's."""
    assert read(bindAddress=address).bind_address is None


@pytest.mark.parametrize(
    ("bind", "healthz", "metrics"),
    [
        ("", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("192.168.0.2", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("::", "[::]:10256", "[::1]:10249"),
        ("fd00::2", "[::]:10256", "[::1]:10249"),
    ],
)
def test_servers_listen_by_default(bind: str, healthz: str, metrics: str) -> None:
    """The health and metrics servers listen in the family of bindAddress."""
    config = read(bindAddress=bind)
    assert (config.healthz_bind_address, config.metrics_bind_address) == (healthz, metrics)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.168.0.2", "192.168.0.2:10256"),
        ("::1", "[::1]:10256"),
        ("[::1]:80", "[::1]:80"),
        ("0.0.0.0:080", "0.0.0.0:80"),
    ],
)
def test_a_port_may_be_left_out(text: str, address: str) -> None:
    """An address to listen on without a port has the default port."""
    assert read(healthzBindAddress=text).healthz_bind_address == address


@pytest.mark.parametrize(
    ("given", "ports"),
    [(None, PROTECTED_PORTS), ([], ()), (["22", 22, "22-22"], (PortRange(22, 22),))],
)
def test_protected_ports_have_a_default(given: object, ports: tuple[PortRange, ...]) -> None:
    """Null is the default, an empty list protects no port, and repeated ports count once."""
    assert read(nftproxy={"protectedPorts": given}).protected_ports == ports


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("mode", "userspace", ": 'userspace' is not a mode of Linux: set it to nftables, or leave it out"),
        ("mode", 5, ": 5 is not a string"),
        ("clusterCIDR", "10.0.0.0", ": '10.0.0.0' is not a CIDR"),
        ("clusterCIDR", "10.0.0.0/8,", ": '' is not a CIDR"),
        ("clusterCIDR", "10.0.0.0/8,11.0.0.0/8", ": 11.0.0.0/8 is a second IPv4 range: at most one is allowed"),
        (
            "detectLocalMode",
            "Cluster",
            ": 'Cluster' is not one of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix",
        ),
        ("detectLocal", [], ": a list is not an object"),
        ("nodePortAddresses", "primary", ": 'primary' is not a list"),
        ("nodePortAddresses", ["10.0.0.0/8", "x"], "[1]: 'x' is not a CIDR, nor primary, localhost or all"),
        ("nodePortAddresses", ["Localhost"], "[0]: 'Localhost' is not a CIDR, nor primary, localhost or all"),
        ("nodePortAddresses", [4], "[0]: 4 is not a string, nor primary, localhost or all"),
        ("featureGates.KubeProxyNFTablesLocalhostNodePorts", 1, ": 1 is not true or false"),
        ("bindAddress", "x", ": 'x' does not appear to be an IPv4 or IPv6 address"),
        ("healthzBindAddress", "localhost:10256", ": 'localhost' does not appear to be an IPv4 or IPv6 address"),
        ("metricsBindAddress", "127.0.0.1:0", ": 0 is not a port from 1 to 65535"),
        ("metricsBindAddress", "127.0.0.1:70000", ": 70000 is not a port from 1 to 65535"),
        ("metricsBindAddress", ":10249", ": '' does not appear to be an IPv4 or IPv6 address"),
        ("hostnameOverride", "node a", ": 'node a' is not a node's name"),
        ("oomScoreAdj", 1001, ": 1001 is not from -1000 to 1000"),
        ("oomScoreAdj", "1", ": '1' is not an integer"),
        ("bindAddressHardFail", "no", ": 'no' is not true or false"),
        ("nftables.masqueradeBit", 32, ": 32 is not from 0 to 31"),
        ("nftables.masqueradeBit", -1, ": -1 is not from 0 to 31"),
        ("nftables.syncPeriod", 30, ": 30 is not a duration as in 1h30m or 2.5s"),
        ("nftables.syncPeriod", "-1s", ": '-1s' is not a duration as in 1h30m or 2.5s"),
        ("logging.format", "xml", ": 'xml' is not one of text, json"),
        ("logging.verbosity", -1, ": -1 is not from 0 to 2147483647"),
        ("conntrack.maxPerCore", -1, ": -1 is not from 0 to 2147483647"),
        ("conntrack.min", 2**31, ": 2147483648 is not from 0 to 2147483647"),
        ("conntrack.udpTimeout", [], ": a list is not a duration as in 1h30m or 2.5s"),
        ("featureGates.AllowServiceExternalIPs", "false", ": 'false' is not true or false"),
        ("featureGates", "x", ": 'x' is not an object"),
        ("nftproxy.externalIPCIDRs", ["10.0.0.0"], "[0]: '10.0.0.0' is not a CIDR"),
        *(
            ("nftproxy.protectedPorts", [80, ports], f"[1]: {ports!r} {NO_PORT}")
            for ports in (0, 65536, "0-1", "5-4", "1-65536", "-1", "", "a", "1-2-3", "٣")
        ),
        *(
            ("nftproxy.agentSocket", path, f": {show(path)} is not an absolute path of at most 90 bytes")
            for path in ("agent.sock", "/run/x\n", "/" + 90 * "x")
        ),
        *(
            ("detectLocal.bridgeInterface", name, f": {show(name)} {NO_INTERFACE.format(15)}")
            for name in ("x" * 16, "a b", "a/b", "a*", 'a"', "a\n", "a\0", ".", "..", "é")
        ),
        ("detectLocal.interfaceNamePrefix", "p" * 15, f": {'p' * 15!r} {NO_INTERFACE.format(14)}"),
        ("nftproxy.algorithm", "lc", f": 'lc' is not one of {', '.join(each.value for each in ALGORITHMS)}"),
        ("nftproxy.externalAddresses", "shut", ": 'shut' is not one of open, closed"),
        (
            "nftproxy.externalAddresses",
            "closed",
            ": closed needs nftproxy.externalIPCIDRs: ranges that nothing but Services uses",
        ),
        ("nftproxy.ping", "yes", ": 'yes' is not one of reject, answer"),
        ("nftproxy.failover", "silent", ": 'silent' is not a list"),
        *(
            ("nftproxy.failover", ["silent", word], f"[1]: {word!r} is not one of silent, refused, gone")
            for word in ("", "none", 5)
        ),
        ("nftproxy.serviceProxyName", "a,b", ": 'a,b' is not the value of a label"),
        *(
            ("nftproxy.startupTaint", key, f": {key!r} is not the key of a taint, as in nftproxy.dev/not-ready")
            for key in ("not ready", "/not-ready", "a/b/c")
        ),
        *(
            ("nftproxy.startupTaint", key, f": {key!r} is one of Kubernetes' own taints, which nftproxy may not remove")
            for key in ("node.kubernetes.io/not-ready", "kubernetes.io/x", "x.k8s.io/x")
        ),
    ],
)
def test_faults(path: str, value: object, problem: str) -> None:
    """A wrong type or value is an error with its path."""
    section, _, field = path.rpartition(".")
    assert faults(**{section: {field: value}} if section else {field: value}) == [f"{path}{problem}"]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (
            {"detectLocalMode": "BridgeInterface"},
            "detectLocal.bridgeInterface: is missing, and detectLocalMode BridgeInterface needs it",
        ),
        (
            {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"bridgeInterface": "br0"}},
            "detectLocal.interfaceNamePrefix: is missing, and detectLocalMode InterfaceNamePrefix needs it",
        ),
        ({"mode": "ipvs", "iptables": {"masqueradeBit": 32}}, "iptables.masqueradeBit: 32 is not from 0 to 31"),
        (
            {"nftables": {"syncPeriod": "10s", "minSyncPeriod": "11s"}},
            "nftables.minSyncPeriod: 11 s is longer than syncPeriod, 10 s",
        ),
        (
            {"mode": "iptables", "iptables": {"syncPeriod": 1}},
            "iptables.syncPeriod: 1 is not a duration as in 1h30m or 2.5s",
        ),
    ],
)
def test_faults_of_fields_that_depend_on_others(fields: dict[str, Any], fault: str) -> None:
    """A value that another field makes wrong or necessary is an error with its own path."""
    assert faults(**fields) == [fault]


@pytest.mark.parametrize("name", ["", "br-0", "eth0.100", "x" * 15, "a@b"])
def test_interface_names(name: str) -> None:
    """Names that nft takes without a second thought are allowed."""
    assert read(detectLocal={"bridgeInterface": name}).bridge_interface == name


def test_all_faults_in_one_go() -> None:
    """Every fault is listed, not only the first, each with the file and the path."""
    with pytest.raises(BadInput) as caught:
        parse_config(
            HEAD | {"mode": "win", "oomScoreAdj": 5000, "nftables": {"masqueradeAll": 1}}, "proxy.yaml", FIELDS
        )
    assert str(caught.value).splitlines() == [
        "NFT102: proxy.yaml: KubeProxyConfiguration: nftables.masqueradeAll: 1 is not true or false",
        "NFT102: proxy.yaml: KubeProxyConfiguration: mode: 'win' is not a mode of Linux: "
        "set it to nftables, or leave it out",
        "NFT102: proxy.yaml: KubeProxyConfiguration: oomScoreAdj: 5000 is not from -1000 to 1000",
    ]


@pytest.mark.parametrize(
    ("raw", "problems"),
    [
        ([], ["NFT102: f: a list is not a KubeProxyConfiguration"]),
        (None, ["NFT102: f: null is not a KubeProxyConfiguration"]),
        (
            {"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1", "mode": "x"},
            [
                "NFT102: f: KubeProxyConfiguration: apiVersion: 'kubelet.config.k8s.io/v1beta1' is not "
                "kubeproxy.config.k8s.io/v1alpha1",
                "NFT102: f: KubeProxyConfiguration: kind: 'KubeletConfiguration' is not KubeProxyConfiguration",
            ],
        ),
    ],
)
def test_another_kind_of_file(raw: object, problems: list[str]) -> None:
    """A file that is no KubeProxyConfiguration v1alpha1 is an error, and nothing else of it is read."""
    with pytest.raises(BadInput) as caught:
        parse_config(raw, "f", FIELDS)
    assert str(caught.value).splitlines() == problems


def test_unknown_fields_are_warned_of() -> None:
    """An unknown field is a warning with its path, in used and in unused sections."""
    raw = HEAD | {
        "Mode": "ipvs",
        "nftables": {"fast": 1},
        "winkernel": {"x": 1},
        "a\nb": 1,
        "logging": {"options": {"y": {}}},
    }
    fields = ("Mode", "nftables.fast", "winkernel.x", r"'a\nb'", "logging.options.y")
    assert parse_config(raw, "f", FIELDS) == (
        full_config(),
        [
            Problem("f", "KubeProxyConfiguration", field, "unknown field", Code.CONFIGURATION_UNKNOWN_FIELD)
            for field in fields
        ],
    )


@pytest.mark.parametrize(
    ("mode", "counts"),
    [
        (None, (True, 3, 10.0, 1.0)),
        ("", (True, 4, 10.0, 2.0)),
        ("nftables", (False, 3, 30.0, 1.0)),
        ("iptables", (True, 4, 10.0, 2.0)),
        ("ipvs", (True, 4, 20.0, 1.0)),
    ],
)
def test_the_section_of_the_mode_counts(mode: str | None, counts: tuple[bool, int, float, float]) -> None:
    """The section of the mode goes first.  If it lacks a value, the next section counts.  An empty mode is iptables."""
    config, _ = parse_config(
        HEAD
        | {
            "mode": mode,
            "nftables": {"masqueradeAll": False, "masqueradeBit": 3, "syncPeriod": "0s", "minSyncPeriod": "1s"},
            "iptables": {"masqueradeAll": True, "masqueradeBit": 4, "syncPeriod": "10s", "minSyncPeriod": "2s"},
            "ipvs": {"syncPeriod": "20s", "minSyncPeriod": "1s"},
        },
        "",
        FIELDS,
    )
    assert (config.masquerade_all, config.masquerade_bit, config.sync_period, config.min_sync_period) == counts


def test_a_field_that_a_flag_overrides_is_named_by_the_flag() -> None:
    """A fault or a warning about a flag's value names the flag, not the file."""
    flags = {"nodePortAddresses": "nodeport-addresses", "portRange": "proxy-port-range"}
    with pytest.raises(BadInput) as caught:
        parse_config(HEAD | {"nodePortAddresses": ["x"], "oomScoreAdj": 2000}, "f", FIELDS, flags)
    assert str(caught.value).splitlines() == [
        "NFT102: --nodeport-addresses: 'x' is not a CIDR, nor primary, localhost or all",
        "NFT102: f: KubeProxyConfiguration: oomScoreAdj: 2000 is not from -1000 to 1000",
    ]
    _, warnings = parse_config(HEAD | {"portRange": "1-2", "profiling": None}, "f", FIELDS, flags)
    assert [warning.coded for warning in warnings] == [
        "NFT103: --proxy-port-range: has no effect: no port is opened on behalf of Services",
        "NFT104: f: KubeProxyConfiguration: profiling: unknown field",
    ]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("9" * 10_000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
sections = st.sampled_from(["conntrack", "nftables", "detectLocal", "clientConnection", "featureGates"])
fields = st.sampled_from([name for name in KUBEADM if name not in HEAD])


@settings(max_examples=100)
@given(fields, anything, sections, st.data())
def test_anything_at_all(field: str, value: object, section: str, data: st.DataObject) -> None:
    """A file with any value in any field is either read or rejected, with printable problems."""
    raw = KUBEADM | {field: value}
    inner = {**KUBEADM.get(section, {}), "AllowServiceExternalIPs": True}
    raw |= {section: inner | {data.draw(st.sampled_from(sorted(inner))): data.draw(anything)}}
    try:
        _, warnings = parse_config(raw, "f", FIELDS)
    except BadInput as error:
        warnings = error.problems
        assert warnings
    assert all(str(warning).isprintable() and len(str(warning)) < 400 for warning in warnings)


def test_beside_another_proxy_its_ports_are_taken() -> None:
    """With a proxy name each default port is a warning that names a free port."""
    raw = {**HEAD, "nftproxy": {"serviceProxyName": "canary"}, "metricsBindAddress": "[::1]:10249"}
    _, warnings = parse_config(raw, "f", FIELDS)
    where = "is kube-proxy's, and nftproxy runs beside kube-proxy: set it to"
    assert [warning.coded for warning in warnings] == [
        f"NFT110: f: KubeProxyConfiguration: healthzBindAddress: 0.0.0.0:10256 {where} 0.0.0.0:10356",
        f"NFT110: f: KubeProxyConfiguration: metricsBindAddress: [::1]:10249 {where} [::1]:10349",
    ]
    free = {"healthzBindAddress": "0.0.0.0:10356", "metricsBindAddress": "127.0.0.1:10349"}
    assert parse_config(raw | free, "f", FIELDS)[1] == []


@pytest.mark.parametrize(
    "key",
    [
        "nftproxy.dev/not-ready",
        "not-ready",
        "my-kubernetes.io/x",
        "startup-taint.cluster-autoscaler.kubernetes.io/nftproxy",
        "ignore-taint.cluster-autoscaler.kubernetes.io/nftproxy",
    ],
)
def test_startup_taints(key: str) -> None:
    """A key is a name, with a domain or without a domain, and not Kubernetes' own."""
    assert read(nftproxy={"startupTaint": key}) == full_config(startup_taint=key)


def test_an_empty_proxy_name_is_none() -> None:
    """An empty proxy name is the default."""
    assert read(nftproxy={"serviceProxyName": ""}) == full_config()
