"""Each finding of `nftproxy doctor` is provoked by its cause, in a real namespace, and by nothing else."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer, Permission
from nftproxy_conformance.apiserver.faults import Fault, Respond

from nftproxy.agent.socket.answers import AgentState, NodeInputs
from nftproxy.commands.agent_client import AgentClient, NoAnswer, NoAnswerInTime
from nftproxy.doctor import diagnosis as diagnosis_module
from nftproxy.installed import CODES
from nftproxy.kernel import capabilities, sysctl
from nftproxy.kernel.agent_lock import AgentLock
from nftproxy.kernel.capabilities import Feature, missing_features
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.others import ipvs
from nftproxy.model.addresses import Family
from nftproxy.netlink.codec import FAMILY_NUMBER
from tests.commands.test_kube_proxy_cleanup import FakeIPVS
from tests.conftest import Run
from tests.kernel.others.test_nfacct import make as counter
from tests.support import objects
from tests.support.command import Done, nftproxy
from tests.support.factories import pipeline
from tests.support.kube_proxy_rules import IPTABLES_MODE, IPVS_MODE, TOOLS, restore, run

CONFIG = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
EVERYWHERE = {"NFT310"}
"""The finding of every machine with nft 1.0.6."""
INVALID_DROPPED = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
LOCALHOST_ACCEPTED = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"

NO_KUBE_PROXY = ("--kube-proxy-metrics", "http://192.0.2.1:10249")
"""An address without a route: rules of these tests drop connections to localhost, which doctor would wait for."""

NO_AGENT = ("--agent-socket", "/proc/none/agent.sock")
"""No agent's socket: tests of other files may run an agent of this machine."""

Finding = dict[str, Any]


@pytest.fixture(autouse=True)
def node(namespace: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 -- that is where everything is
    """A node that forwards and reaches itself, without the search for missing features, which takes a second."""
    run("ip link set lo up")
    setting("ipv4/ip_forward", 1)
    monkeypatch.setattr(capabilities, "missing_features", list)


def setting(path: str, value: int) -> None:
    """Make a setting of the namespace."""
    Path("/proc/sys/net", path).write_text(str(value))


def diagnosis(*arguments: str | Path) -> dict[str, Any]:
    """The JSON output of doctor, which doesn't ask an agent of this machine."""
    done = nftproxy("doctor", "--output", "json", "--hostname-override", "node-a", *NO_AGENT, *arguments)
    assert done.out, done.err
    said: dict[str, Any] = json.loads(done.out)
    matters = any(finding["severity"] != "note" for finding in said["findings"])
    assert done.status == int(matters)
    return said


def found(*arguments: str | Path) -> dict[str, Finding]:
    """The findings by their codes, except for `EVERYWHERE`."""
    return {each["code"]: each for each in diagnosis(*arguments)["findings"] if each["code"] not in EVERYWHERE}


def seen(finding: Finding) -> str:
    """All evidence of a finding."""
    return "\n".join(finding["evidence"])


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """Gives a function that writes a configuration, and returns its file."""

    def write(text: str) -> Path:
        file = tmp_path / "config.conf"
        file.write_text(CONFIG + text)
        return file

    return write


@pytest.fixture
def answers() -> Iterator[Any]:
    """Gives a function that answers HTTP with these texts by their paths, and returns the URL."""
    servers = []

    def start(texts: Mapping[str, str]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = texts.get(self.path)
                self.send_response(404 if body is None else 200)
                self.end_headers()
                self.wfile.write((body or "").encode())

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_node_without_anything_has_nothing_to_say() -> None:
    """An untouched node has no finding, and the answer names everything that couldn't be inspected."""
    said = diagnosis()
    assert {each["code"] for each in said["findings"]} <= EVERYWHERE
    assert (said["stage"], said["mode"]) == ("fresh", "")
    assert [each["what"] for each in said["unseen"]] == [
        "kube-proxy's configuration",
        "kube-proxy's metrics",
        "the API server",
    ]


def test_looking_changes_nothing() -> None:
    """A look leaves no table behind, in either variant of iptables or in nftables."""
    found()
    assert run("nft list tables") == ""
    assert run("iptables-legacy-save") == ""


# ---- kube-proxy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["", "iptables", "ipvs"])
def test_node_ports_on_all_addresses(config: Any, mode: str) -> None:
    """A mode that serves node ports on all addresses is a warning where the node has several, and a note with one."""
    run("ip link add eth0 type bridge")
    run("ip link set eth0 up")
    run("ip address add 192.168.0.2/24 dev eth0")
    file = config(f"mode: '{mode}'\n")
    assert found("--config", file)["NFT601"]["severity"] == "note"
    run("ip address add 192.168.0.3/24 dev eth0")
    finding = found("--config", file)["NFT601"]
    assert finding["severity"] == "warning"
    assert "192.168.0.2, 192.168.0.3" in seen(finding)
    assert "NFT601" not in found("--config", config(f"mode: '{mode}'\nnodePortAddresses: [192.168.0.0/24]\n"))


def test_nftables_mode_serves_as_we_do(config: Any) -> None:
    """kube-proxy in nftables mode serves node ports on the primary addresses too."""
    assert found("--config", config("mode: nftables\nclusterCIDR: 10.1.0.0/16\n")) == {}


def test_node_ports_at_localhost_by_the_metric(config: Any, answers: Any) -> None:
    """Packets that kube-proxy has counted are a warning.  A count of 0 is no finding, a missing metric a note."""
    file = config("mode: iptables\nnodePortAddresses: [127.0.0.0/8]\n")
    for text, severity in ((f"{LOCALHOST_ACCEPTED} 7\n", "warning"), (f"{LOCALHOST_ACCEPTED} 0\n", None), ("", "note")):
        url = answers({"/metrics": f"# HELP {LOCALHOST_ACCEPTED} x\n{text}"})
        finding = found("--config", file, "--kube-proxy-metrics", url).get("NFT602")
        assert (finding or {}).get("severity") == severity
        if severity == "warning":
            assert finding
            assert f"{LOCALHOST_ACCEPTED} is 7, at {url}/metrics" in seen(finding)


def test_the_metrics_of_the_configuration(config: Any, answers: Any) -> None:
    """Without a URL the metrics are those at kube-proxy's metricsBindAddress, but not at a canary's."""
    url = answers({"/metrics": f"{LOCALHOST_ACCEPTED} 7\n"})
    text = f"mode: iptables\nmetricsBindAddress: {url.removeprefix('http://')}\n"
    assert f"{LOCALHOST_ACCEPTED} is 7, at {url}/metrics" in seen(found("--config", config(text))["NFT602"])
    canary = config(f"{text}nftproxy: {{serviceProxyName: nftproxy}}\n")
    (unseen,) = [each for each in diagnosis("--config", canary)["unseen"] if "metrics" in each["what"]]
    assert "127.0.0.1:10249" in unseen["why"]


def test_node_ports_at_localhost_by_the_counter() -> None:
    """Where kube-proxy's metrics aren't to be had, the kernel's own counter shows it."""
    counter("localhost_nps_accepted_pkts", 7)
    finding = found()["NFT602"]
    assert finding["severity"] == "warning"
    assert seen(finding) == "the counter localhost_nps_accepted_pkts of kube-proxy's rules has 7 packets"


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "ip6tables-nft"])  # 1.8.9 restores no counters
def test_invalid_packets_by_the_rule(tool: str) -> None:
    """A rule that drops invalid packets is a note, a warning once it has dropped some, nothing with tcpBeLiberal."""
    restore(tool, IPTABLES_MODE)
    assert found()["NFT603"]["severity"] == "note"
    text = run(f"{tool}-save -c -t filter")
    run(f"{tool}-restore -c", re.sub(r"^\[0:0\] (-A KUBE-FORWARD .*INVALID)", r"[5:200] \1", text, flags=re.MULTILINE))
    finding = found()["NFT603"]
    assert finding["severity"] == "warning"
    assert f"{tool}-save: KUBE-FORWARD has dropped 5 invalid packets" in seen(finding)
    setting("netfilter/nf_conntrack_tcp_be_liberal", 1)
    assert "NFT603" not in found()


def test_invalid_packets_by_metric_and_counter(answers: Any, config: Any) -> None:
    """kube-proxy's metric and the kernel's counter are evidence, unless the configuration is liberal."""
    restore("iptables-nft", IPTABLES_MODE)
    url = answers({"/metrics": f"{INVALID_DROPPED} 12\n"})
    counter("ct_state_invalid_dropped_pkts", 11)
    finding = found("--kube-proxy-metrics", url)["NFT603"]
    assert finding["severity"] == "warning"
    assert f"{INVALID_DROPPED} is 12, at {url}/metrics" in seen(finding)
    assert "the counter ct_state_invalid_dropped_pkts of kube-proxy's rules has 11 packets" in seen(finding)
    assert "NFT603" not in found("--config", config("conntrack: {tcpBeLiberal: true}\n"))


@pytest.mark.parametrize(
    ("scheduler", "severity", "algorithm"),
    [
        ("''", "note", "round-robin"),
        ("rr", "note", "round-robin"),
        (
            "lc",
            "warning",
            "least-connections, where shares follow their connections every few seconds",
        ),
        ("sh", "note", "source-hash"),
        ("odd", "warning", "random, where nftproxy doesn't know this scheduler"),
    ],
)
def test_the_scheduler_that_is_configured(config: Any, scheduler: str, severity: str, algorithm: str) -> None:
    """The algorithm in place of the scheduler is named, and it is a warning if it differs."""
    finding = found("--config", config(f"mode: ipvs\nipvs: {{scheduler: {scheduler}}}\n"))["NFT604"]
    assert finding["severity"] == severity
    assert f": nftproxy.algorithm: {algorithm}" in seen(finding)


def test_the_scheduler_of_virtual_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The scheduler of virtual servers counts without a configuration (in a kernel that has IPVS)."""
    monkeypatch.setattr(ipvs, "IPVS_IN_KERNEL", tmp_path)
    monkeypatch.setattr(ipvs, "IPVS", FakeIPVS("10.96.0.10", "10.96.0.11", scheduler="wlc"))
    finding = found()["NFT604"]
    assert finding["severity"] == "warning"
    assert "virtual servers with the scheduler wlc" in seen(finding)


def test_the_interface_of_ipvs_mode() -> None:
    """kube-ipvs0 is noted, and tells of the mode."""
    run("ip link add kube-ipvs0 type bridge")
    said = diagnosis()
    assert "NFT605" in {each["code"] for each in said["findings"]}
    assert (said["stage"], said["mode"]) == ("before", "ipvs")


def test_fields_without_effect(config: Any) -> None:
    """Each unused field is named with its replacement, and an unusable field is an error."""
    finding = found("--config", config("mode: ipvs\nipvs: {strictARP: true, excludeCIDRs: [10.0.0.0/8]}\n"))["NFT103"]
    assert finding["severity"] == "note"
    assert "ipvs.strictARP: has no effect: no interface gets the Services' addresses" in seen(finding)
    assert "ipvs.excludeCIDRs: has no effect" in seen(finding)
    broken = found("--config", config("mode: nftables\nclusterCIDR: 10.0.0.0/40\n"))["NFT102"]
    assert broken["severity"] == "error"
    assert "clusterCIDR" in seen(broken)


def test_rules_in_both_variants() -> None:
    """kube-proxy's chains in both variants of iptables at once are a warning."""
    restore("iptables-nft", IPTABLES_MODE)
    assert "NFT608" not in found()
    restore("iptables-legacy", IPTABLES_MODE)
    assert "iptables-legacy-save: the chain KUBE-SERVICES" in seen(found()["NFT608"])


@pytest.mark.parametrize(("dump", "mode"), [(IPTABLES_MODE, "iptables"), (IPVS_MODE, "ipvs")])
def test_the_mode_shows_in_the_rules(dump: str, mode: str) -> None:
    """Without a configuration kube-proxy's own chains tell iptables mode from IPVS mode."""
    run("ipset create KUBE-CLUSTER-IP hash:ip,port")
    run("ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535")
    restore("iptables-nft", dump)
    said = diagnosis()
    assert (said["stage"], said["mode"]) == ("before", mode)
    assert "NFT601" in {each["code"] for each in said["findings"]}


# ---- where the configuration comes from ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds 0 documents where one is needed"),
        ("kind: List\nitems: []\n", "has 0 KubeProxyConfigurations where one is needed"),
        ("kind: ConfigMap\ndata: {a: b}\n", "has 0 KubeProxyConfigurations where one is needed"),
    ],
)
def test_a_cluster_without_the_config_map_is_told_how_to_go_on(text: str, why: str) -> None:
    """Where kubectl finds no ConfigMap of kube-proxy, the error says that doctor does without."""
    done = nftproxy("doctor", "--config", "-", *NO_AGENT, stdin=text)
    assert (done.status, done.out) == (2, "")
    hint = "if the cluster has no ConfigMap of kube-proxy, leave --config out: a running kube-proxy is asked"
    assert done.err.splitlines() == [f"error: NFT101: -: {each}" for each in (why, hint)]


def test_a_config_map_on_standard_input() -> None:
    """The output of `kubectl get configmap kube-proxy --output yaml` is taken as it is."""
    inner = "".join(f"    {line}\n" for line in (CONFIG + "mode: ipvs\nipvs:\n  scheduler: lc\n").splitlines())
    text = (
        f"apiVersion: v1\nkind: ConfigMap\ndata:\n  config.conf: |-\n{inner}  kubeconfig.conf: |-\n    apiVersion: v1\n"
    )
    done = nftproxy("doctor", "--output", "json", "--config", "-", *NO_AGENT, stdin=text)
    assert {"NFT604"} <= {each["code"] for each in json.loads(done.out)["findings"]}


def test_a_file_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    """A configuration that was named and isn't there, or is none, ends with status 2."""
    assert nftproxy("doctor", "--config", tmp_path / "nothing").status == 2
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert nftproxy("doctor", "--config", tmp_path / "list.yaml").status == 2


def test_a_running_kube_proxy_shows_its_file_and_flags(config: Any) -> None:
    """The process in this network namespace shows its file, and its flags override the file."""
    file = config("mode: iptables\nipvs: {scheduler: sh}\n")
    wait = "import sys; print(flush=True); sys.stdin.read()"
    arguments = ["kube-proxy", "-c", wait, "--proxy-mode", "ipvs", f"--config={file}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, executable=sys.executable, stdin=pipe, stdout=pipe) as process:
        assert process.stdout
        process.stdout.readline()
        said = diagnosis()
        process.communicate()
    assert said["mode"] == "ipvs", said["unseen"]
    (finding,) = (each for each in said["findings"] if each["code"] == "NFT604")
    assert f"ipvs.scheduler: sh, in /proc/{process.pid}/root{file}" in seen(finding)


def test_configz(answers: Any) -> None:
    """Without a file or a process kube-proxy's /configz counts, with Go's names.  Our own /configz doesn't."""
    values = {"Mode": "ipvs", "IPVS": {"Scheduler": "lc"}, "NodePortAddresses": None}
    url = answers({"/configz": json.dumps({"kubeproxy.config.k8s.io": values})})
    finding = found("--kube-proxy-metrics", url)["NFT604"]
    assert f"ipvs.scheduler: lc, in {url}/configz" in seen(finding)
    ours = answers({"/configz": json.dumps({"kubeproxy.config.k8s.io": {"mode": "nftables", "nftproxy": {}}})})
    (unseen, *_) = diagnosis("--kube-proxy-metrics", ours)["unseen"]
    assert unseen["why"] == f"no --config, and the program at {ours}/configz isn't kube-proxy"


def test_a_configuration_that_names_no_pods(tmp_path: Path) -> None:
    """Without clusterCIDR and any other mode, nothing says which sources are pods, and known interfaces are named."""
    (config := tmp_path / "config.yaml").write_text(CONFIG)
    finding = found("--config", config)["NFT637"]
    assert (finding["severity"], seen(finding)) == (
        "warning",
        f"no clusterCIDR and no other detectLocalMode, in {config}",
    )
    run("ip link add eni0a1b2c3 type veth peer name other")
    assert found("--config", config)["NFT637"]["evidence"][1] == (
        "the interfaces eni* are pods': detectLocalMode: InterfaceNamePrefix, detectLocal.interfaceNamePrefix: eni"
    )
    for field in ("clusterCIDR: 10.1.0.0/16\n", "detectLocalMode: NodeCIDR\n"):
        config.write_text(CONFIG + field)
        assert "NFT637" not in found("--config", config)


def test_a_node_without_the_range_that_is_asked_for(server: ApiServer, kubeconfig: Path, tmp_path: Path) -> None:
    """With detectLocalMode NodeCIDR, a Node without podCIDRs says nothing about pods, and a Node with them does."""
    (config := tmp_path / "config.yaml").write_text(f"{CONFIG}detectLocalMode: NodeCIDR\n")
    finding = found("--config", config, "--kubeconfig", kubeconfig)["NFT637"]
    assert seen(finding).startswith(f"detectLocalMode: NodeCIDR, in {config}, and the Node node-a has no podCIDRs")
    server.put(objects.node("node-a", spec={"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}))
    assert "NFT637" not in found("--config", config, "--kubeconfig", kubeconfig)


def inputs(*pod_cidrs: str, **fields: Any) -> NodeInputs:
    """The answer of an agent with this configuration."""
    given = yaml.safe_load(CONFIG) | {"mode": "nftables", "nftproxy": {}} | fields
    configuration = msgspec.Raw(json.dumps({"kubeproxy.config.k8s.io": given}).encode())
    return NodeInputs("node-a", "", (), (), pod_cidrs, (), None, (), (), True, configuration)


def test_the_configuration_that_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kube-proxy's configuration the agent's counts, with its range of pods."""
    node_range = {"detectLocalMode": "NodeCIDR"}
    cases = [
        (inputs(), {"NFT637"}),
        (inputs(clusterCIDR="10.1.0.0/16"), set()),
        (inputs(**node_range), {"NFT637"}),
        (inputs("10.1.0.0/24", **node_range), set()),
        (inputs(clusterCIDR="10.1.0.0/16", conntrack={"min": 2_000_000_000, "maxPerCore": 1}), {"NFT627"}),
    ]
    for answer, codes in cases:
        status = mock.Mock(spec=AgentState, warnings=())
        answers = {NodeInputs: answer, AgentState: status}
        monkeypatch.setattr(AgentClient, "get", lambda _self, kind, _path, answers=answers: answers[kind])
        findings = found()
        assert set(findings) == codes
        assert "the agent's configuration" in seen(findings["NFT637"]) if "NFT637" in codes else True


def test_an_agent_that_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that hangs is a warning.  Another failure is named if an agent runs."""

    def ask_and_get(error: NoAnswer) -> dict[str, Any]:
        monkeypatch.setattr(AgentClient, "get", mock.Mock(side_effect=error))
        return diagnosis()

    hanging = ask_and_get(NoAnswerInTime("the agent doesn't answer within 3 s: it is stopped", "let it go on"))
    (finding,) = (each for each in hanging["findings"] if each["code"] == "NFT023")
    assert (finding["severity"], seen(finding)) == (
        "warning",
        "the agent doesn't answer within 3 s: it is stopped; let it go on",
    )
    assert AgentClient.get.call_count == 1, "it isn't waited for again"  # type: ignore[attr-defined]
    nowhere = NoAnswer("no agent answers", "start it")
    assert "the agent's configuration" not in {each["what"] for each in ask_and_get(nowhere)["unseen"]}
    lock = AgentLock()
    try:
        assert lock.acquire()
        assert {"what": "the agent's configuration", "why": "no agent answers"} in ask_and_get(nowhere)["unseen"]
    finally:
        lock.close()


def test_connection_tracking_that_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings that a node doesn't have lead to no finding.  The answer says that they weren't seen."""
    monkeypatch.setattr(sysctl, "NETWORK", str(tmp_path))
    said = diagnosis()
    assert {each["code"] for each in said["findings"]} <= EVERYWHERE
    (unseen,) = (each for each in said["unseen"] if each["what"].startswith("the settings "))
    assert "netfilter/nf_conntrack_max" in unseen["what"]


# ---- other programs ------------------------------------------------------------------------------------------------

UFW = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-forward - [0:0]
:ufw-user-forward - [0:0]
-A FORWARD -j ufw-before-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
COMMIT
"""
DOCKER = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
COMMIT
"""
FIREWALLD = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:FORWARD_direct - [0:0]
-A FORWARD -j FORWARD_direct
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
COMMIT
"""
FIREWALLS = {"ufw": UFW, "Docker": DOCKER, "firewalld": FIREWALLD}


@pytest.mark.parametrize("tool", ["iptables-nft", "iptables-legacy"])
@pytest.mark.parametrize("firewall", FIREWALLS)
def test_forward_accepts_that_vanish(tool: str, firewall: str) -> None:
    """kube-proxy's accepts above a firewall that drops are a warning that names it, and so is the firewall alone."""
    restore(tool, FIREWALLS[firewall], "")
    alone = found()
    assert "NFT611" not in alone
    assert alone["NFT612"]["severity"] == "warning"
    restore(tool, IPTABLES_MODE)
    both = found()
    assert "NFT612" not in both
    assert f"({firewall})" in seen(both["NFT611"])
    assert "KUBE-FORWARD has 1 accept rules" in seen(both["NFT611"])


def test_no_firewall_no_finding() -> None:
    """kube-proxy's accepts are nothing to speak of where the policy accepts anyway."""
    restore("iptables-nft", IPTABLES_MODE)
    assert not {"NFT611", "NFT612", "NFT613"} & found().keys()


def test_a_firewall_in_a_table_of_its_own() -> None:
    """A table of firewalld's own drops with or without kube-proxy, so that nothing changes: a note."""
    rules = "chain filter_FORWARD { type filter hook forward priority 10; policy drop; }\n"
    run("nft -f -", f"table inet firewalld {{ {rules} }}\n")
    finding = found()["NFT613"]
    assert (finding["severity"], seen(finding)) == ("note", "the chain filter_FORWARD in the table inet firewalld")


FOREIGN = """\
table inet firewalld {
  chain reject-all { reject; }
  map by-port { type inet_service : verdict; elements = { 22 : accept, 80 : jump reject-all }; }
  chain filter_INPUT { type filter hook input priority 10; policy accept; tcp dport vmap @by-port; }
  chain filter_FORWARD { type filter hook forward priority 10; policy drop; }
  chain filter_OUTPUT { type filter hook output priority 10; policy accept; counter; }
}
table ip mine {
  chain inner { tcp dport vmap { 23 : drop, 24 : accept }; }
  chain early { type filter hook prerouting priority -300; ip saddr 198.51.100.7 goto inner; }
  chain KUBE-FIREWALL { drop; }
  chain harmless { type filter hook prerouting priority -299; jump KUBE-FIREWALL; accept; }
}
table ip asleep {
  flags dormant
  chain filter_FORWARD { type filter hook forward priority 10; policy drop; }
}
table netdev guard {
  chain in { type filter hook ingress device "lo" priority 0; policy accept; ip daddr 10.96.0.99 drop; }
}
"""
LEGACY = """\
*raw
:PREROUTING ACCEPT [0:0]
:mine - [0:0]
-A PREROUTING -j mine
-A mine -j DROP
COMMIT
"""


def test_every_foreign_chain_that_can_drop_is_named_beside_our_rules() -> None:
    """Beside our rules each chain of other programs is a warning that can drop, by policy or in reach of its jumps.

    Chains of a dormant table drop nothing.
    """
    run("nft -f -", FOREIGN)
    assert "NFT636" not in found(*NO_KUBE_PROXY)
    Kernel().apply(pipeline().full_transaction({}))
    restore("iptables-nft", DOCKER, "")
    restore("iptables-legacy", LEGACY, "")
    both = found(*NO_KUBE_PROXY)
    assert "NFT613" not in both
    assert both["NFT636"]["severity"] == "warning"
    assert both["NFT636"]["evidence"] == [
        "the chain filter_FORWARD in the table inet firewalld (forward): its policy is drop",
        "the chain filter_INPUT in the table inet firewalld (input): a rule in the chain reject-all drops or rejects",
        "the chain FORWARD in the table ip filter (forward): its policy is drop",
        "the chain early in the table ip mine (prerouting): a rule in the chain inner drops or rejects",
        "the chain PREROUTING in the table iptables-legacy raw (prerouting): a rule in the chain mine drops or rejects",
        "the chain in in the table netdev guard (ingress): a rule drops or rejects",
    ]


EARLY = """\
table inet mine {
  chain dns { notrack; }
  chain raw { type filter hook prerouting priority -300; udp dport 53 jump dns; }
  chain late { type filter hook prerouting priority -150; notrack; }
  chain forwarded { type filter hook forward priority -300; notrack; }
  chain sources { type nat hook postrouting priority -150; masquerade; }
}
table ip mine {
  chain ports { type nat hook prerouting priority -101; tcp dport 81 redirect to 8081; }
  chain own { type nat hook output priority -150; ip daddr 10.96.0.10 dnat to 192.0.2.1; }
  chain after { type nat hook prerouting priority -100; ip daddr 10.96.0.10 dnat to 192.0.2.1; }
}
"""
NODE_LOCAL = """\
*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -j CT --notrack
-A OUTPUT -p udp -m udp --dport 53 -j CT --zone 1
COMMIT
"""


def test_every_foreign_chain_that_comes_before_ours_is_named_beside_our_rules() -> None:
    """Beside our rules each earlier chain is a warning that exempts packets from tracking or translates them.

    At the priority of ours a chain may run first.
    """
    run("nft -f -", EARLY)
    assert "NFT639" not in found(*NO_KUBE_PROXY)
    Kernel().apply(pipeline().full_transaction({}))
    for tool in TOOLS:
        restore(
            tool, NODE_LOCAL if tool.startswith("iptables") else NODE_LOCAL.replace("169.254.20.10/32", "fd00::/64")
        )
    finding = found(*NO_KUBE_PROXY)["NFT639"]
    assert finding["severity"] == "warning"
    exempts = "a rule exempts packets from connection tracking"
    assert finding["evidence"] == [
        "the chain raw in the table inet mine (prerouting): "
        "a rule in the chain dns exempts packets from connection tracking",
        "the chain own in the table ip mine (output): a rule translates destinations",
        "the chain ports in the table ip mine (prerouting): a rule translates destinations",
        f"the chain PREROUTING in the table ip raw (prerouting): {exempts}",
        f"the chain PREROUTING in the table ip6 raw (prerouting): {exempts}",
        f"the chain PREROUTING in the table ip6tables-legacy raw (prerouting): {exempts}",
        f"the chain PREROUTING in the table iptables-legacy raw (prerouting): {exempts}",
    ]


def test_chains_that_the_fast_path_passes_by() -> None:
    """Beside the table of our fast path, another program's chain on the way of packets is a note."""
    run("nft -f -", "table inet mine { chain way { type filter hook forward priority 0; }; }")
    assert "NFT640" not in found()
    run("nft add table inet nftproxy-fast-path")
    finding = found()["NFT640"]
    assert finding["severity"] == "note"
    assert finding["evidence"] == ["the chain way in the table inet mine (forward)"]


def test_without_other_programs_nothing_is_said_about_them() -> None:
    """Our own rules, which drop packets and translate them, are no other program's."""
    Kernel().apply(pipeline().full_transaction({}))
    assert not {"NFT636", "NFT639"} & found().keys()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server in the node's network, which knows the node."""
    with ApiServer(tls=True, authenticate=True) as made:
        made.put({"kind": "Node", "metadata": {"name": "node-a"}})
        yield made


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    """How to reach it."""
    return server.write_kubeconfig(tmp_path / "kubeconfig")


FELIX = "/apis/crd.projectcalico.org/v1/felixconfigurations/default"


@pytest.mark.parametrize(("mode", "is_found"), [("Auto", True), (None, True), ("Enabled", False)])
def test_calico_that_follows_kube_proxy(server: ApiServer, kubeconfig: Path, mode: str | None, is_found: bool) -> None:
    """Calico in nftables on account of kube-proxy's tables is a warning, unless its mode is fixed."""
    body = json.dumps({"spec": {"nftablesMode": mode} if mode else {}}).encode()
    server.faults.add(Fault(Respond(200, body=body), resource=FELIX, count=2))
    run("nft add table ip calico")
    assert "NFT614" not in found("--kubeconfig", kubeconfig)
    run("nft add table ip kube-proxy")
    finding = found("--kubeconfig", kubeconfig).get("NFT614")
    assert (finding is not None) is is_found
    if finding:
        assert seen(finding) == "the table ip calico\nnftablesMode: Auto, in felixconfiguration/default"


def test_calico_whose_mode_is_not_known() -> None:
    """Without the API the finding says that the mode is unknown, and it stays once our tables are there alone."""
    run("nft add table ip calico")
    run("nft add table ip nftproxy")
    assert "nftablesMode couldn't be read" in seen(found()["NFT614"])


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("ip link add cilium_host type bridge", "NFT616"),
        ("iptables-nft -t nat -N CILIUM_PRE_nat", "NFT616"),
        ("ip link add kube-dummy-if type bridge", "NFT617"),
        ("ip6tables-legacy -t nat -N KUBE-ROUTER-SERVICES", "NFT617"),
    ],
)
def test_other_proxies(command: str, code: str) -> None:
    """Cilium and kube-router are a warning, by their interfaces and their chains."""
    run(command)
    assert found()[code]["severity"] == "warning"


def test_what_kube_proxy_has_left() -> None:
    """kube-proxy's rules are no finding before ours are there, and a warning beside them."""
    run("nft add table ip kube-proxy")
    assert "NFT615" not in found()
    run("nft add table ip nftproxy")
    said = diagnosis()
    assert said["stage"] == "beside"
    (finding,) = (each for each in said["findings"] if each["code"] == "NFT615")
    assert seen(finding) == "the table ip kube-proxy (nftables mode)"


def test_a_canary_beside_kube_proxy_is_as_it_should_be() -> None:
    """A canary's tables beside kube-proxy's are a stage of their own, in which nothing has to be removed."""
    run("nft add table ip6 kube-proxy")
    run("nft -f -", pipeline(service_proxy_name="canary").load(Family.IPV6, None).text)
    said = diagnosis()
    assert said["stage"] == "canary"
    assert "NFT615" not in {each["code"] for each in said["findings"]}


def test_rules_without_an_agent() -> None:
    """Our rules alone are a warning, until an agent keeps them."""
    run("nft add table ip nftproxy")
    assert found()["NFT618"]["severity"] == "warning"
    lock = AgentLock()
    try:
        assert lock.acquire()
        assert "NFT618" not in found()
        assert diagnosis()["stage"] == "after"
    finally:
        lock.close()


def test_a_setting_that_outlives_kube_proxy() -> None:
    """route_localnet is kube-proxy's business while its rules are there, and a warning once they are gone."""
    setting("ipv4/conf/all/route_localnet", 1)
    run("iptables-nft -t nat -N KUBE-SERVICES")
    assert "NFT619" not in found()
    run("iptables-nft -t nat -X KUBE-SERVICES")
    assert seen(found()["NFT619"]) == "net.ipv4.conf.all.route_localnet is 1"


# ---- the node ------------------------------------------------------------------------------------------------------


def test_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feature that the kernel or nft refuses is an error, with its source."""
    nonsense = Feature("teleporting", "CONFIG_NFT_TELEPORT", "chain c { teleport }")
    monkeypatch.setattr(capabilities, "missing_features", functools.partial(missing_features, [nonsense]))
    finding = found()["NFT401"]
    assert finding["severity"] == "error"
    assert "teleporting for ip (CONFIG_NFT_TELEPORT)" in seen(finding)


def test_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that the kernel's nftables doesn't know is a warning (number 12 is DECnet, which is gone)."""
    monkeypatch.setitem(FAMILY_NUMBER, Family.IPV6, 12)
    finding = found()["NFT402"]
    assert (finding["severity"], seen(finding)) == ("warning", "IPv6")


def test_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that can't remember IPv6 clients is a note that says how it failed."""
    probed = capabilities.probe()
    codes = {each["code"]: each for each in diagnosis()["findings"]}
    assert ("NFT310" in codes) is bool(probed.reason)
    monkeypatch.setattr(capabilities, "probe", lambda: capabilities.Probe(probed.capabilities, "it has died"))
    codes = {each["code"]: each for each in diagnosis()["findings"]}
    assert (codes["NFT310"]["severity"], seen(codes["NFT310"])) == ("note", "it has died")
    lines = nftproxy("doctor", *NO_AGENT).out.split("\n\n")
    brief = "note NFT310: Session affinity for IPv6 goes by a hash of the client's address: it has died"
    assert brief in lines, "in a paragraph of one line"
    assert not any(paragraph.startswith("note") for paragraph in lines[lines.index(brief) + 1 :]), "after all others"


def test_forwarding() -> None:
    """A node that doesn't forward is an error for IPv4, and a warning for IPv6 where the node has such addresses."""
    setting("ipv4/ip_forward", 0)
    assert (found()["NFT624"]["severity"], seen(found()["NFT624"])) == ("error", "net.ipv4.ip_forward is 0")
    setting("ipv4/ip_forward", 1)
    setting("ipv6/conf/all/forwarding", 0)
    assert "NFT624" not in found()
    run("ip link add eth0 type bridge")
    run("ip address add fd00::2/64 dev eth0")
    finding = found()["NFT624"]
    assert (finding["severity"], seen(finding)) == ("warning", "net.ipv6.conf.all.forwarding is 0")


def test_bridged_pods() -> None:
    """Pods on a bridge that bypasses the rules are a warning."""
    if not Path("/proc/sys/net/bridge").exists():
        pytest.skip("br_netfilter is not loaded")
    for path in ("bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"):
        setting(path, 1)
    run("ip link add cni0 type bridge")
    assert "NFT625" not in found()
    setting("bridge/bridge-nf-call-iptables", 0)
    assert seen(found()["NFT625"]) == "the interface cni0\nnet.bridge.bridge-nf-call-iptables is 0"


def test_ports_of_the_pods_bridge(config: Any) -> None:
    """A pod's port without hairpin is a warning on the pods' bridge, while rules see bridged packets."""
    if not Path("/proc/sys/net/bridge").exists():
        pytest.skip("br_netfilter is not loaded")
    setting("bridge/bridge-nf-call-iptables", 1)
    setting("bridge/bridge-nf-call-ip6tables", 0)
    for bridge in ("cni0", "pods", "docker0"):
        run(f"ip link add {bridge} type bridge")
        run(f"ip link add {bridge}p type veth peer name {bridge}q")
        run(f"ip link set {bridge}p master {bridge}")
    off = "hairpin is off at the port"
    assert seen(found("--config", config("mode: nftables\n"))["NFT642"]) == f"{off} cni0p of the bridge cni0"
    given = config("mode: nftables\ndetectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: pods}\n")
    both = f"{off} cni0p of the bridge cni0\n{off} podsp of the bridge pods"
    assert seen(found("--config", given)["NFT642"]) == both
    run("ip link set cni0p type bridge_slave hairpin on")
    assert "NFT642" not in found()
    run("ip link set cni0p type bridge_slave hairpin off")
    setting("bridge/bridge-nf-call-iptables", 0)
    assert "NFT642" not in found()


def test_a_tunnel_of_a_smaller_mtu() -> None:
    """A tunnel whose packets are smaller than those of the pods' interfaces is a note with both."""
    run("ip link add vxlan0 mtu 1400 type vxlan id 1 dstport 4789 dev lo")
    assert "NFT643" not in found()
    run("ip link add pod mtu 1450 type veth peer name other mtu 1400")
    finding = found()["NFT643"]
    assert (finding["severity"], seen(finding)) == ("note", "the MTU is 1450 at pod\nthe MTU is 1400 at vxlan0")
    run("ip link set pod mtu 1400")
    assert "NFT643" not in found()


def uplink() -> None:
    """An interface with a range of pods behind it."""
    for command in (
        "link add eth7 mtu 1400 type veth peer name other mtu 1400",
        "link set eth7 up",
        "link set other up",
        "address add 192.168.7.1/24 dev eth7",
        "route add 10.1.1.0/24 via 192.168.7.2",
    ):
        run(f"ip {command}")


def slice_of(*addresses: str) -> objects.Object:
    """An EndpointSlice of pods of node-b, and one of node-a."""
    given = [*(objects.endpoint(each, "node-b") for each in addresses), objects.endpoint("10.1.0.4", "node-a")]
    return objects.endpoint_slice("web-1", *given, service="web")


def test_routes_to_endpoints(server: ApiServer, kubeconfig: Path, config: Any) -> None:
    """An endpoint of another node without a route is a warning, and one that the default route leads to is a note."""
    uplink()
    server.put(slice_of("10.1.1.4", "10.1.2.4", "10.1.3.4", "198.51.100.4"))
    given = ("--kubeconfig", kubeconfig, "--config", config("mode: nftables\nclusterCIDR: 10.1.0.0/16\n"))
    finding = found(*given)["NFT018"]
    assert (finding["severity"], finding["evidence"]) == (
        "warning",
        [f"nothing routes to 10.1.{each}.4 (Network is unreachable)" for each in (2, 3)],
    )
    run("ip route add default via 192.168.7.9")
    run("ip rule add to 10.1.3.0/24 unreachable")
    lost, stray = found(*given)["NFT018"]["evidence"]
    assert lost == "nothing routes to 10.1.3.4 (Network is unreachable)"
    assert stray == "the default route leads to 10.1.2.4, though 1 of 2 endpoints have routes of their own"
    run("ip rule delete to 10.1.3.0/24 unreachable")
    run("ip route add 10.1.3.0/24 via 192.168.7.3")
    assert found(*given)["NFT018"]["severity"] == "note"
    run("ip route delete 10.1.1.0/24")
    run("ip route delete 10.1.3.0/24")
    assert "NFT018" not in found(*given), "the network around the node has the routes"


def test_the_kubeconfig_of_the_configuration(kubeconfig: Path, config: Any, tmp_path: Path) -> None:
    """Without --kubeconfig the configuration's is used if this node has it, else the API server isn't seen."""
    for path, is_there in ((kubeconfig, True), (tmp_path / "in-a-pod", False)):
        said = diagnosis("--config", config(f"mode: nftables\nclientConnection: {{kubeconfig: {path}}}\n"))
        assert ("the API server" not in {each["what"] for each in said["unseen"]}) is is_there


def test_a_route_of_a_smaller_mtu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route to an agent's endpoint that takes smaller packets than a pod sends is a note, as its interface is."""
    uplink()
    run("ip link add pod mtu 1450 type veth peer name inside mtu 1400")
    run("ip route add 10.1.2.0/24 via 192.168.7.2 mtu 1300")
    known = msgspec.structs.replace(inputs(clusterCIDR="10.1.0.0/16"), endpoints=("10.1.1.4", "10.1.2.4"))
    answers = {NodeInputs: known, AgentState: mock.Mock(spec=AgentState, warnings=())}
    monkeypatch.setattr(AgentClient, "get", lambda _self, kind, _path: answers[kind])
    assert found()["NFT643"]["evidence"] == [
        "the MTU is 1450 at pod",
        "the MTU is 1400 at eth7",
        "the MTU is 1300 on the route to 10.1.2.4",
    ]


def test_conntrack_smaller_than_asked_for(config: Any) -> None:
    """A limit below the configured value is a note with both numbers."""
    maximum = Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text().strip()
    finding = found("--config", config("mode: nftables\nconntrack: {min: 2000000000}\n"))["NFT627"]
    assert seen(finding) == f"net.netfilter.nf_conntrack_max is {maximum}, and the configuration asks for 2000000000"


@pytest.mark.parametrize(("name", "value", "code"), [("count", 90, "NFT626"), ("buckets", 10, "NFT628")])
def test_conntrack_that_is_full_or_slow(name: str, value: int, code: str) -> None:
    """A table that is nearly full, or whose hash is small, is a warning (made up: these sizes are the machine's)."""
    sizes = {"count": 10, "max": 100, "buckets": 25}
    for numbers, expected in ((sizes, set()), (sizes | {name: value}, {code})):
        made = {f"netfilter/nf_conntrack_{each}": number for each, number in numbers.items()}
        with mock.patch.object(sysctl, "read_all", lambda _, made=made: made | {"ipv4/ip_forward": 1}):
            assert {"NFT626", "NFT628"} & found().keys() == expected


# ---- the cluster ---------------------------------------------------------------------------------------------------


def test_a_cluster_that_allows_everything(kubeconfig: Path) -> None:
    """With all rights and a Node of this name there is nothing to say."""
    assert found("--kubeconfig", kubeconfig) == {}


def test_the_way_to_the_api(
    server: ApiServer, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way to the API server is named, whether it answers or not, with the proxy that a variable names."""
    url = f"https://127.0.0.1:{server.port}"
    assert (diagnosis("--kubeconfig", kubeconfig)["api"], diagnosis()["api"]) == (url, "")
    text = nftproxy("doctor", "--hostname-override", "node-a", "--kubeconfig", kubeconfig).out
    assert text.splitlines()[1] == f"the API server: {url}"
    moved = tmp_path / "moved"
    moved.write_text(kubeconfig.read_text().replace("127.0.0.1", "0.0.0.0"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://us:er@127.0.0.1:1")
    way = f"https://0.0.0.0:{server.port} through the proxy http://127.0.0.1:1 (HTTPS_PROXY)"
    assert diagnosis("--kubeconfig", moved)["api"] == way


def test_rights_verb_by_verb(server: ApiServer, kubeconfig: Path) -> None:
    """Each right that is missing is named: an error if the agent needs it, else a warning."""
    server.rbac = [
        Permission("", "services", "list"),
        Permission("discovery.k8s.io", "endpointslices", "*"),
        Permission("networking.k8s.io", "servicecidrs", "list"),
        Permission("", "nodes", "*"),
        Permission("events.k8s.io", "events", "create"),
    ]
    codes = found("--kubeconfig", kubeconfig)
    assert (codes["NFT503"]["severity"], codes["NFT503"]["evidence"]) == ("error", ["watch services"])
    assert codes["NFT633"]["severity"] == "warning"
    assert codes["NFT633"]["evidence"] == ["watch servicecidrs.networking.k8s.io", "patch events.events.k8s.io"]


def test_rights_for_a_startup_taint(server: ApiServer, kubeconfig: Path, config: Any) -> None:
    """Only a configuration with a startup taint needs to change the Node."""
    server.rbac = [Permission("*", "*", verb) for verb in ("list", "watch", "create")]
    server.rbac += [Permission("events.k8s.io", "events", "patch")]
    assert "NFT503" not in found("--kubeconfig", kubeconfig)
    tainted = config("nodePortAddresses: [primary]\nnftproxy: {startupTaint: nftproxy.dev/not-ready}\n")
    assert found("--kubeconfig", kubeconfig, "--config", tainted)["NFT503"]["evidence"] == ["get nodes", "patch nodes"]


def test_the_rights_of_the_manifest_are_enough(server: ApiServer, kubeconfig: Path) -> None:
    """The ClusterRole that examples/deploy has gives all that doctor asks after."""
    from nftproxy_conformance.apiserver import permissions_of

    text = (Path(__file__).resolve().parents[2] / "examples" / "deploy" / "daemonset.yaml").read_text()
    server.rbac = permissions_of(yaml.safe_load_all(text))
    assert found("--kubeconfig", kubeconfig) == {}


@pytest.mark.parametrize(("status", "code"), [(401, "NFT503"), (403, "NFT503"), (500, "NFT502")])
def test_a_server_that_denies_everything(server: ApiServer, kubeconfig: Path, status: int, code: str) -> None:
    """A server that answers with 401 or 403 is told from a server that fails, with the address and its words."""
    server.faults.add(
        Fault(Respond(status, "go away"), resource="/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", count=None)
    )
    (finding,) = [each for each in found("--kubeconfig", kubeconfig).values() if each["severity"] == "error"]
    assert finding["code"] == code
    assert f"https://127.0.0.1:{server.port}: {status} " in seen(finding)


def test_a_server_that_does_not_answer(server: ApiServer, kubeconfig: Path) -> None:
    """A rejected token is a denial, and a server that nobody reaches is an error with the address and the reason."""
    server.expire_token()
    finding = found("--kubeconfig", kubeconfig)["NFT503"]
    assert finding["severity"] == "error"
    assert f"401 Unauthorized: 'Unauthorized': {kubeconfig} was written at " in seen(finding)
    server.close()
    no_answer = seen(found("--kubeconfig", kubeconfig)["NFT501"])
    assert re.search(r"https://127\.0\.0\.1:(\d+): no connection to 127\.0\.0\.1:\1: Connection refused", no_answer)


def test_a_way_to_the_server_that_leads_through_a_service(server: ApiServer, kubeconfig: Path) -> None:
    """An API server that is reached by its own ClusterIP is a warning."""
    server.put(objects.service("kubernetes", {"clusterIP": "127.0.0.1"}, namespace="default"))
    assert "which is the ClusterIP of the Service default/kubernetes" in seen(
        found("--kubeconfig", kubeconfig)["NFT634"]
    )


def test_a_node_that_the_cluster_does_not_know(kubeconfig: Path) -> None:
    """A node name that no Node has is a warning."""
    finding = found("--kubeconfig", kubeconfig, "--hostname-override", "node-b")["NFT635"]
    assert seen(finding).startswith("no Node node-b, at https://")


def test_an_interface_that_is_not_forwarded_from() -> None:
    """An interface from which the node doesn't forward, though it does in general, is a warning (NFT624)."""
    run("ip link add pods type veth peer name other")
    setting("ipv4/conf/pods/forwarding", 0)
    assert seen(found()["NFT624"]) == "net.ipv4.conf.pods.forwarding is 0"
    setting("ipv4/conf/pods/forwarding", 1)
    assert "NFT624" not in found()


def test_timeouts_of_seconds() -> None:
    """A timeout that breaks connections with short pauses is a warning (NFT641)."""
    assert "NFT641" not in found()
    path = "netfilter/nf_conntrack_tcp_timeout_established"
    before = int(Path("/proc/sys/net", path).read_text())
    setting(path, 5)
    assert seen(found()["NFT641"]) == "net.netfilter.nf_conntrack_tcp_timeout_established is 5"
    setting(path, before)


def test_a_node_whose_address_is_absent(server: ApiServer, kubeconfig: Path) -> None:
    """A Node whose InternalIP no interface has is a warning with the address."""
    addresses = [{"type": "InternalIP", "address": "192.0.2.55"}, {"type": "ExternalIP", "address": "192.0.2.56"}]
    server.put(objects.node("node-a", status={"addresses": addresses}))
    finding = found("--kubeconfig", kubeconfig)["NFT019"]
    assert seen(finding).startswith("no interface here has InternalIP 192.0.2.55 of the Node node-a: a wrong node name")
    run("ip address add 192.0.2.55/32 dev lo")
    assert "NFT019" not in found("--kubeconfig", kubeconfig)


@pytest.mark.parametrize(("version", "is_old"), [("v1.27.16", True), ("v1.28.0", False), ("v1.37.2", False)])
def test_an_old_kubernetes(server: ApiServer, kubeconfig: Path, version: str, is_old: bool) -> None:
    """A server that is older than the oldest supported version is a warning with both versions."""
    server.settings.version = version
    findings = found("--kubeconfig", kubeconfig)
    assert set(findings) == ({"NFT638"} if is_old else set())
    if is_old:
        told = f"https://127.0.0.1:{server.port} is of Kubernetes 1.27, and the oldest supported version is 1.28"
        assert seen(findings["NFT638"]) == told


# ---- the answer ----------------------------------------------------------------------------------------------------


def test_each_code_is_provoked() -> None:
    """Every code that a check may find is in a test above."""
    package = Path(diagnosis_module.__file__).parents[1]
    checks = (*package.glob("doctor/*_checks.py"), *package.glob("extensions/*/checks.py"))
    sources = "".join(path.read_text() for path in checks)
    by_name = {f"{type(code).__name__}.{code.name}": code for code in CODES}
    codes = {by_name[name] for name in re.findall(r"\b\w*Code\.[A-Z]\w+", sources)}
    assert len(codes) == 42
    source = Path(__file__).read_text()
    assert {code for code in codes if code not in source} == set()


def test_text_for_people() -> None:
    """The text has each finding with evidence, consequence and remedy, then everything unseen, and a sum."""
    setting("ipv4/ip_forward", 0)
    done: Done = nftproxy("doctor", "--hostname-override", "node-a", *NO_AGENT)
    assert done.status == 1
    assert done.out.startswith(
        "node node-a: no service proxy's rules are here\n\nerror NFT624: The node doesn't forward"
    )
    for line in ("  seen: net.ipv4.ip_forward is 0\n", "  then: Connections to Services", "  do:   Set this sysctl"):
        assert line in done.out
    assert "\nnot seen:\n" in done.out
    assert re.search(r"^1 error(?:, 1 note)?; 3 not seen$", done.out, re.MULTILINE)


def test_without_rights_that_is_said(as_nobody: Run) -> None:
    """A user without permissions gets an answer that names each unseen thing, and status 1 only for findings."""
    code = f"import sys; sys.argv = {['nftproxy', 'doctor', *NO_AGENT]}\nfrom nftproxy.commands.cli import main\nmain()"
    wrapped = f"try:\n    exec({code!r})\nexcept SystemExit as end: print('status', end.code)"
    text = as_nobody(wrapped)
    for what in ("other proxies' rules", "nftables' chains", "the rules of legacy iptables"):
        assert f"  {what}: " in text
    assert os.geteuid() == 0
