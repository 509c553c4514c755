"""`nftproxy run` takes the command line and the configuration of kube-proxy 1.36, flag by flag and field by field.

Each test starts the process.  It tries many flags and fields at once: `--write-config-to` shows the value of each, and
the log has a warning for each without effect.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nftproxy import __version__
from nftproxy.extensions.fast_path.rules import FAST_PATH_TABLE
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink.nft_queries import inet_table_comment
from nftproxy.model.addresses import Family
from nftproxy.rules.transaction import Transaction
from tests.conftest import CHECKOUT
from tests.support.command import Done
from tests.support.processes import killed_on_error
from tests.support.selection import every
from tests.support.waiting import PATIENCE

HEAD = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}


def run(*arguments: str | Path, stdin: str | None = None) -> Done:
    """Run `nftproxy run` to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "nftproxy", "run", *arguments],
        cwd=CHECKOUT,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def warnings(err: str) -> list[str]:
    """The warnings in a log of text, without their codes."""
    return [line.partition(" WARNING ")[2].partition(": ")[2] for line in err.splitlines() if " WARNING " in line]


def at(document: Any, path: str) -> Any:
    """The value at a dotted path."""
    for step in path.split("."):
        document = document[step]
    return document


# ---- flags ---------------------------------------------------------------------------------------------------------

HELP_OF_1_36 = """
add-dir-header alsologtostderr bind-address bind-address-hard-fail boot-id-file cleanup cluster-cidr config
config-sync-period conntrack-max-per-core conntrack-min conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait
conntrack-tcp-timeout-established conntrack-udp-timeout conntrack-udp-timeout-stream detect-local-mode feature-gates
healthz-bind-address healthz-port help hostname-override init-only iptables-localhost-nodeports iptables-masquerade-bit
iptables-min-sync-period iptables-sync-period ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler ipvs-strict-arp
ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout kube-api-burst kube-api-content-type kube-api-qps
kubeconfig log-backtrace-at log-dir log-file log-file-max-size log-flush-frequency log-json-info-buffer-size
log-json-split-stream log-text-info-buffer-size log-text-split-stream logging-format logtostderr machine-id-file
masquerade-all master metrics-bind-address metrics-port nodeport-addresses one-output oom-score-adj pod-bridge-interface
pod-interface-name-prefix profiling proxy-mode proxy-port-range show-hidden-metrics-for-version skip-headers
skip-log-headers stderrthreshold v version vmodule write-config-to
enable-dsr forward-healthcheck-vip network-name root-hnsendpoint-name source-vip windows-run-as-service
"""
"""Every flag of kube-proxy 1.36: options.go, component-base/logs, klog.  The last line is for Windows."""

USED = {
    "--bind-address=192.168.0.2": ("bindAddress", "192.168.0.2"),
    "--bind-address-hard-fail": ("bindAddressHardFail", True),
    "--cluster-cidr=10.1.0.0/16,fd00:1::/48": ("clusterCIDR", "10.1.0.0/16,fd00:1::/48"),
    "--conntrack-max-per-core=1000": ("conntrack.maxPerCore", 1000),
    "--conntrack-min=2000": ("conntrack.min", 2000),
    "--conntrack-tcp-be-liberal=t": ("conntrack.tcpBeLiberal", True),
    "--conntrack-tcp-timeout-close-wait=1m": ("conntrack.tcpCloseWaitTimeout", "60s"),
    "--conntrack-tcp-timeout-established=2m0s": ("conntrack.tcpEstablishedTimeout", "120s"),
    "--conntrack-udp-timeout=3m": ("conntrack.udpTimeout", "180s"),
    "--conntrack-udp-timeout-stream=4m": ("conntrack.udpStreamTimeout", "240s"),
    "--detect-local-mode=NodeCIDR": ("detectLocalMode", "NodeCIDR"),
    "--feature-gates=AllowServiceExternalIPs=false": ("featureGates.AllowServiceExternalIPs", False),
    "--healthz-bind-address=127.0.0.1:1": ("healthzBindAddress", "127.0.0.1:1"),
    "--hostname_override=node-z": ("hostnameOverride", "node-z"),
    "--iptables-min-sync-period=3s": ("nftables.minSyncPeriod", "3s"),
    "--iptables-sync-period=40s": ("nftables.syncPeriod", "40s"),
    "--kubeconfig=/k": ("clientConnection.kubeconfig", "/k"),
    "--logging-format=text": ("logging.format", "text"),
    "--masquerade-all": ("nftables.masqueradeAll", True),
    "--metrics-bind-address=127.0.0.1:2": ("metricsBindAddress", "127.0.0.1:2"),
    "--nodeport-addresses=10.0.0.0/8, fd00::/8": ("nodePortAddresses", ["10.0.0.0/8", "fd00::/8"]),
    "--oom-score-adj=-5": ("oomScoreAdj", -5),
    "--pod-bridge-interface=br0": ("detectLocal.bridgeInterface", "br0"),
    "--pod-interface-name-prefix=veth": ("detectLocal.interfaceNamePrefix", "veth"),
    "-v=4": ("logging.verbosity", 4),
}
"""Flags with values that aren't the default, and the resulting fields of the configuration."""


ALIKE = {
    "has no effect: it is for Windows": (
        "--enable-dsr --forward-healthcheck-vip --network-name=n --root-hnsendpoint-name=n "
        "--source-vip=10.0.0.1 --windows-run-as-service"
    ),
    "has no effect: connections are followed by conntrack, whose timeouts are in the section conntrack": (
        "--ipvs-tcp-timeout=1m --ipvs-tcpfin-timeout=1m --ipvs-udp-timeout=1m"
    ),
    "has no effect: each line of the log is written to standard error at once": (
        "--log-flush-frequency=1s --log-json-info-buffer-size=1Ki --log-json-split-stream "
        "--log-text-info-buffer-size=512 --log-text-split-stream=true"
    ),
    "the log goes to standard error, with the time and level in each line": (
        "--add_dir_header --alsologtostderr --log_backtrace_at=f:1 --log_dir=/d --log_file=/f "
        "--log_file_max_size=1 --logtostderr=false --one_output --skip_headers --skip_log_headers=true "
        "--stderrthreshold=2"
    ),
}
"""Warnings that several flags share."""

WITHOUT_EFFECT = {
    "--config-sync-period=1m": "has no effect: objects are listed anew when a watch has missed something",
    "--iptables-localhost-nodeports": "has no effect: node ports are served on 127.0.0.1 only as nodePortAddresses "
    "says",
    "--iptables-masquerade-bit=15": "has no effect: in this mode nftables.masqueradeBit is used",
    "--ipvs-exclude-cidrs=10.0.0.0/8": "has no effect: no virtual server of IPVS is touched",
    "--ipvs-min-sync-period=2s": "has no effect: in this mode nftables.minSyncPeriod is used",
    "--ipvs-scheduler=rr": "has no effect: nftproxy.algorithm says how endpoints are chosen",
    "--ipvs-strict-arp": "has no effect: no interface gets the Services' addresses, so nobody answers ARP requests for "
    "them",
    "--ipvs-sync-period=1m": "has no effect: in this mode nftables.syncPeriod is used",
    "--kube-api-burst=20": "has no effect: there is one watch for each resource, and nothing to limit",
    "--kube-api-content-type=text/plain": "has no effect: the API is asked for JSON",
    "--kube-api-qps=7.5": "has no effect: there is one watch for each resource, and nothing to limit",
    "--profiling": "has no effect: there is nothing at /debug/pprof",
    "--proxy-mode=nftables": "",
    "--proxy-port-range=1-2": "has no effect: no port is opened on behalf of Services",
    "--show-hidden-metrics-for-version=1.35": "has no effect: no metric is hidden",
    "--vmodule=proxy*=4": "has no effect: logging.verbosity counts for all modules alike",
    "--boot-id-file=/f": "nftproxy doesn't need to identify the machine",
    "--healthz-port=1": "health is served at --healthz-bind-address",
    "--machine-id-file=/f": "nftproxy doesn't need to identify the machine",
    "--metrics-port=2": "metrics are served at --metrics-bind-address",
} | {flag: text for text, flags in ALIKE.items() for flag in flags.split()}
"""Flags without effect, each with its only warning.  --proxy-mode needs none here."""

ELSEWHERE = {"cleanup", "config", "help", "init-only", "master", "version", "write-config-to"}
"""Flags that tests of their own try."""


def name_of(argument: str) -> str:
    """A flag's name, with dashes."""
    return argument.lstrip("-").partition("=")[0].replace("_", "-")


def test_every_flag_is_tried() -> None:
    """Every flag of kube-proxy 1.36 is tried below."""
    assert {name_of(each) for each in (*USED, *WITHOUT_EFFECT)} | ELSEWHERE == set(HELP_OF_1_36.split())


def test_flags_do_what_they_say_or_say_what_happens_instead(tmp_path: Path) -> None:
    """Each flag changes its field of the configuration in force, or a warning names it."""
    file = tmp_path / "written.yaml"
    done = run(*USED, *WITHOUT_EFFECT, "--write-config-to", file)
    assert done.status == 0, done.err
    written = yaml.safe_load(file.read_text())
    assert {argument: at(written, path) for argument, (path, _) in USED.items()} == {
        argument: value for argument, (_, value) in USED.items()
    }
    assert sorted(warnings(done.err)) == sorted(
        f"--{name_of(argument)}: {text}" for argument, text in WITHOUT_EFFECT.items() if text
    )


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    """The file that --write-config-to makes is taken without a warning, and says the same again."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    assert run("--cluster-cidr=10.1.0.0/16", "--masquerade-all", "--write-config-to", first).status == 0
    done = run(f"--config={first}", f"--write-config-to={second}")
    assert (done.status, warnings(done.err)) == (0, [])
    assert second.read_text() == first.read_text()
    assert at(yaml.safe_load(first.read_text()), "nftables.masqueradeAll") is True


def test_a_boolean_can_be_false(tmp_path: Path) -> None:
    """A flag with =false overrides the file's true, and a flag that may be repeated has all that it was given."""
    config, file = tmp_path / "config", tmp_path / "written"
    config.write_text(json.dumps(HEAD | {"nftables": {"masqueradeAll": True}}))
    lists = ["--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses=fd00::/8,11.0.0.0/8"]
    assert run(f"--config={config}", "--masquerade-all=false", *lists, f"--write-config-to={file}").status == 0
    written = yaml.safe_load(file.read_text())
    assert at(written, "nftables.masqueradeAll") is False
    assert written["nodePortAddresses"] == ["10.0.0.0/8", "fd00::/8", "11.0.0.0/8"]


def test_a_bad_flag_is_named() -> None:
    """A flag with an unusable text is an error that names the flag, and so is an unknown flag."""
    done = run("--oom-score-adj=low", "--masquerade-all=maybe", "--cluster-cidr=10.0.0.0")
    assert done.status == 2
    assert sorted(done.err.splitlines()) == [
        "error: NFT102: --cluster-cidr: '10.0.0.0' is not a CIDR",
        "error: NFT102: --masquerade-all: 'maybe' is not true or false",
        "error: NFT102: --oom-score-adj: 'low' is not an integer",
    ]
    assert run("--speed=high").status == 2


def test_master_is_another_address_of_the_server(tmp_path: Path) -> None:
    """The address of --master is used as one of --api-server is, with the kubeconfig's credentials."""
    kubeconfig = tmp_path / "kubeconfig"
    names = {"clusters": "cluster", "users": "user", "contexts": "context"}
    contents: dict[str, Any] = {
        "cluster": {"server": "https://one.example.com"},
        "user": {"token": "t"},
        "context": {"cluster": "x", "user": "x"},
    }
    sections = {section: [{"name": "x", name: contents[name]}] for section, name in names.items()}
    kubeconfig.write_text(json.dumps({"current-context": "x", **sections}))
    done = run(f"--kubeconfig={kubeconfig}", "--master=http://two.example.com")
    assert done.status == 2
    assert (
        "error: NFT106: --api-server: 'http://two.example.com' is not a URL like https://one.example.com\n" in done.err
    )


COMMAND_LINES = {
    "kubeadm": "--config=/dev/stdin --hostname-override=node-a",
    "a managed cluster": "--v=2 --config=/dev/stdin",
    "RKE2": "--cluster-cidr=10.42.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s "
    "--conntrack-tcp-timeout-established=0s --healthz-bind-address=127.0.0.1 --hostname-override=node-a "
    "--kubeconfig=/k --proxy-mode=iptables",
    "Kubernetes' own manifest for GCE": "--kubeconfig=/k --cluster-cidr=10.64.0.0/14 --oom-score-adj=-998 --v=2 "
    "--iptables-sync-period=1m --iptables-min-sync-period=10s --ipvs-sync-period=1m --ipvs-min-sync-period=10s",
    "kOps": "--cluster-cidr=100.96.0.0/11 --conntrack-max-per-core=131072 --hostname-override=node-a --kubeconfig=/k "
    "--master=https://api.internal.example.com --oom-score-adj=-998 --v=2 --logtostderr=false --alsologtostderr "
    "--log-file=/var/log/kube-proxy.log",
}
"""Command lines of kube-proxy in several kinds of installations, with other paths."""


@pytest.mark.parametrize("line", every(3, list(COMMAND_LINES), list(COMMAND_LINES.values())))
def test_command_lines_of_real_installations(tmp_path: Path, line: str) -> None:
    """A command line of kube-proxy's is taken as it is, and its node, range and periods are in force."""
    file = tmp_path / "written.yaml"
    stdin = json.dumps(HEAD | {"clusterCIDR": "10.42.0.0/16"})
    done = run(*line.split(), f"--write-config-to={file}", stdin=stdin)
    assert done.status == 0, done.err
    written = yaml.safe_load(file.read_text())
    assert written["hostnameOverride"] == ("node-a" if "--hostname-override" in line else "")
    assert at(written, "logging.verbosity") == (2 if "--v=2" in line else 0)
    assert at(written, "nftables.syncPeriod") == ("60s" if "--iptables-sync-period" in line else "30s")
    assert written["clusterCIDR"] == next(
        (each.partition("=")[2] for each in line.split() if each.startswith("--cluster-cidr=")), "10.42.0.0/16"
    )


@pytest.mark.parametrize("mode", every(2, ["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]))
def test_every_word_for_local_sources(tmp_path: Path, mode: str) -> None:
    """Each way of telling local sources, and each word for node ports' addresses, is in force as it was given."""
    file, names = tmp_path / "written.yaml", ["--pod-bridge-interface=br0", "--pod-interface-name-prefix=veth"]
    words = ["--nodeport-addresses=primary,localhost", "--nodeport-addresses=10.0.0.0/8,all"]
    assert run(f"--detect-local-mode={mode}", *names, *words, f"--write-config-to={file}").status == 0
    written = yaml.safe_load(file.read_text())
    assert written["detectLocalMode"] == mode
    assert set(written["nodePortAddresses"]) == {"primary", "localhost", "10.0.0.0/8", "0.0.0.0/0", "::/0"}


# ---- fields --------------------------------------------------------------------------------------------------------

FIELDS_OF_1_36: dict[str, Any] = yaml.safe_load("""
featureGates: {AllowServiceExternalIPs: false, NFTablesProxyMode: true, WinDSR: true}
clientConnection:
  {kubeconfig: /k, acceptContentTypes: application/json, contentType: application/json, qps: 7, burst: 20}
logging:
  {format: text, flushFrequency: 1000000000, verbosity: 2, vmodule: [{filePattern: proxy*, verbosity: 4}],
   options: {text: {splitStream: true, infoBufferSize: 1Ki}, json: {splitStream: true, infoBufferSize: 1Ki}}}
hostnameOverride: node-z
bindAddress: 192.168.0.2
healthzBindAddress: 127.0.0.1:1
metricsBindAddress: 127.0.0.1:2
bindAddressHardFail: true
enableProfiling: true
showHiddenMetricsForVersion: "1.35"
mode: ipvs
iptables: {masqueradeBit: 15, masqueradeAll: true, localhostNodePorts: true, syncPeriod: 10s, minSyncPeriod: 5s}
ipvs:
  {syncPeriod: 40s, minSyncPeriod: 4s, scheduler: rr, excludeCIDRs: [10.0.0.0/8], strictARP: true, tcpTimeout: 1m,
   tcpFinTimeout: 1m, udpTimeout: 1m}
nftables: {masqueradeBit: 13, masqueradeAll: false, syncPeriod: 50s, minSyncPeriod: 6s}
winkernel: {networkName: n, sourceVip: 10.0.0.1, enableDSR: true, rootHnsEndpointName: n, forwardHealthCheckVip: true}
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: br0, interfaceNamePrefix: veth}
clusterCIDR: 10.1.0.0/16
nodePortAddresses: [10.0.0.0/8]
oomScoreAdj: -5
conntrack:
  {maxPerCore: 1000, min: 2000, tcpEstablishedTimeout: 1s, tcpCloseWaitTimeout: 2s, tcpBeLiberal: true, udpTimeout: 3s,
   udpStreamTimeout: 4s}
configSyncPeriod: 1m
portRange: 1-2
windowsRunAsService: true
""")
"""Every field of KubeProxyConfiguration in 1.36 (types.go), each with a value that isn't the default."""

IN_FORCE = {
    path: at(FIELDS_OF_1_36, path)
    for path in """clientConnection.kubeconfig logging.format logging.verbosity hostnameOverride bindAddress
    healthzBindAddress metricsBindAddress bindAddressHardFail detectLocalMode detectLocal clusterCIDR nodePortAddresses
    oomScoreAdj conntrack featureGates.AllowServiceExternalIPs""".split()
} | {
    "mode": "nftables",
    "nftables": {"masqueradeAll": True, "masqueradeBit": 15, "syncPeriod": "40s", "minSyncPeriod": "4s"},
}
"""The fields in force: the values of the used fields, with the periods and the mark of mode ipvs."""

WARNED_OF = """
mode featureGates clientConnection.acceptContentTypes clientConnection.contentType clientConnection.qps
clientConnection.burst logging.flushFrequency logging.vmodule logging.options.text.splitStream
logging.options.text.infoBufferSize logging.options.json.splitStream logging.options.json.infoBufferSize enableProfiling
showHiddenMetricsForVersion iptables.localhostNodePorts ipvs.scheduler ipvs.excludeCIDRs ipvs.strictARP ipvs.tcpTimeout
ipvs.tcpFinTimeout ipvs.udpTimeout winkernel.networkName winkernel.sourceVip winkernel.enableDSR
winkernel.rootHnsEndpointName winkernel.forwardHealthCheckVip configSyncPeriod portRange windowsRunAsService
"""


def test_fields_do_what_they_say_or_say_what_happens_instead(tmp_path: Path) -> None:
    """Each field is in force, or a warning names it and the replacement."""
    config, file = tmp_path / "config.yaml", tmp_path / "written.yaml"
    config.write_text(yaml.safe_dump(HEAD | FIELDS_OF_1_36))
    done = run("--config", config, "--write-config-to", file)
    assert done.status == 0, done.err
    written = yaml.safe_load(file.read_text())
    assert {path: at(written, path) for path in IN_FORCE} == IN_FORCE
    prefix = f"{config}: KubeProxyConfiguration: "
    told = [line.removeprefix(prefix).split(": ", 1) for line in warnings(done.err)]
    assert sorted(field for field, _ in told) == sorted(WARNED_OF.split())
    assert all("unknown" not in text and len(text) > 20 for _, text in told)


DEFAULTS_WRITTEN_BY_KUBE_PROXY: dict[str, Any] = yaml.safe_load("""
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  {acceptContentTypes: "", burst: 10, contentType: application/vnd.kubernetes.protobuf, kubeconfig: "", qps: 5}
configSyncPeriod: 15m0s
enableProfiling: false
iptables: {masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 1s, syncPeriod: 30s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 1s, scheduler: "", syncPeriod: 30s}
logging: {flushFrequency: 5000000000, format: text, options: {text: {}}, verbosity: 0}
mode: nftables
portRange: ""
winkernel: {enableDSR: false, networkName: ""}
""")


def test_what_kube_proxy_writes_needs_no_warning(tmp_path: Path) -> None:
    """The defaults, as `kube-proxy --write-config-to` writes them all out, are taken without a word."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(HEAD | DEFAULTS_WRITTEN_BY_KUBE_PROXY))
    done = run("--config", config, "--write-config-to", tmp_path / "written")
    assert (done.status, warnings(done.err)) == (0, [])


# ---- exits at once ------------------------------------------------------------------------------------------------


def test_version() -> None:
    """--version prints a name and a version, --version=raw prints more, and nothing else happens."""
    assert run("--version") == (0, f"nftproxy v{__version__}\n", "")
    done = run("--version=raw", "--config=/none")
    assert done.status == 0
    assert done.out.startswith(f"nftproxy v{__version__} (Python 3.")
    assert done.out.endswith(", commit checkout)\n")


def test_a_configuration_that_can_not_be_written_is_an_error() -> None:
    """--write-config-to names the file that it can't write."""
    done = run("--write-config-to=/none/such")
    assert (done.status, done.err) == (2, "error: NFT101: /none/such: No such file or directory\n")


@pytest.mark.usefixtures("namespace")
def test_cleanup() -> None:
    """--cleanup removes our tables and ends, as `cleanup` does.  With =false it has no effect."""
    fast_path = f"table inet {FAST_PATH_TABLE} {{}}\n"
    Kernel().apply(Transaction(f"table ip nftproxy {{}}\ntable ip6 nftproxy {{}}\ntable ip other {{}}\n{fast_path}"))
    assert run("--cleanup=false", "--write-config-to=/dev/null").status == 0
    assert Kernel().read_back(Family.IPV4) is not None
    assert run("--cleanup") == (0, "", "")
    assert [Kernel().read_back(family) for family in Family] == [None, None]
    assert inet_table_comment(FAST_PATH_TABLE) is None
    assert run("--cleanup=perhaps").status == 2


# ---- the proxy -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("mode", every(2, ["iptables", "ipvs"]))
def test_other_modes_run_as_nftables(tmp_path: Path, mode: str) -> None:
    """In mode iptables or ipvs the process logs once that it runs as nftables.  Each log line is a JSON object."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(HEAD | {"mode": mode, "logging": {"format": "json", "verbosity": 4}}))
    command = [sys.executable, "-m", "nftproxy", "run", f"--config={config}", f"--source={manifests}"]
    with (
        subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True) as process,
        killed_on_error(process),
    ):
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["msg"].startswith("loaded the rules"):
                process.terminate()
        assert process.wait(PATIENCE) == 0
    assert all({"ts", "level", "msg"} <= line.keys() for line in lines)
    (loaded,) = (line for line in lines if line["msg"].startswith("loaded the rules"))
    assert loaded["level"] == "info"
    assert loaded["msg"] == f"loaded the rules: {loaded['elements']} elements"
    (warning,) = (line for line in lines if "runs as nftables" in line["msg"])
    assert warning["level"] == "warning"
    assert f"mode: {mode} runs as nftables" in warning["msg"]
    assert any(line["level"] == "debug" for line in lines)
    assert Kernel().read_back(Family.IPV4) is not None
