"""`nftproxy manifests`: for each distribution and option it prints complete objects that the API takes."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
import yaml

from nftproxy import __version__
from nftproxy.config.parse_config import parse_config
from nftproxy.deploy.distributions import DISTRIBUTIONS, IMPOSSIBLE
from nftproxy.installed_fields import FIELDS
from nftproxy.kernel.sysctl import OOM_SCORE_ADJ, wanted
from nftproxy.model.addresses import Family
from nftproxy.model.objects import Node
from nftproxy.model.settings import Config
from nftproxy.policy.local_sources import LocalSources, local_sources
from tests.conftest import CHECKOUT
from tests.support.command import nftproxy
from tests.support.selection import every

DEPLOY = CHECKOUT / "examples" / "deploy"
CONFIG_MAP = (DEPLOY / "kube-proxy.yaml").read_text()
EMPTY_MODE = (
    "KubeProxyConfiguration: mode: iptables, kube-proxy's default, runs as nftables: "
    "by default node ports are served on the node's primary addresses alone"
)
API_VERSIONS = ("1.34", "1.35", "1.36", "1.37")
"""Of Kubernetes: the releases that were maintained when this was written."""

KNOWN = ["--api-server", "https://api.example.com:6443", "--cluster-cidr", "10.244.0.0/16,fd00:244::/56"]
WISHES: dict[str, list[str]] = {
    "kubeadm": KNOWN,
    "k3s": ["--for", "k3s"],
    "rke2": ["--for", "rke2"],
    "talos": ["--for", "talos"],
    "kops": ["--for", "kops", *KNOWN],
    "eks": ["--for", "eks", "--api-server", "https://0123.gr7.eu-central-1.eks.amazonaws.com"],
    "k0s": ["--for", "k0s", "--api-server", "https://localhost:7443"],
    "aks": ["--for", "aks", *KNOWN],
    "all wishes": [
        *KNOWN, "--image", "registry.example.com:5000/net/nftproxy:0.1.0@sha256:" + 64 * "0", "--monitoring",
        "--startup-taint", "nftproxy.dev/not-ready", "--node-selector", "example.org/proxy=nftproxy",
    ],
    "the example": ["--node-selector", "proxy=nftproxy", str(DEPLOY / "kube-proxy.yaml")],
    "a canary": [*KNOWN, "--service-proxy-name", "canary", "--monitoring", "--startup-taint", "nftproxy.dev/not-ready"],
}  # fmt: skip


class Made(NamedTuple):
    """The output of a command: objects by kind, and the agent's configuration."""

    objects: dict[str, Any]
    config: Config

    @classmethod
    def of(cls, text: str) -> Made:
        """Parse a text, whose configuration has no unknown field and none without effect."""
        objects = {each["kind"]: each for each in yaml.safe_load_all(text)}
        (file,) = objects["ConfigMap"]["data"].values()
        config, warnings = parse_config(yaml.safe_load(file), "config.yaml", FIELDS)
        assert warnings == []
        return cls(objects, config)

    @property
    def pod(self) -> Any:
        """The pod's specification."""
        return self.objects["DaemonSet"]["spec"]["template"]["spec"]

    @property
    def agent(self) -> Any:
        """The container that stays."""
        (found,) = self.pod["containers"]
        return found

    @property
    def environment(self) -> dict[str, Any]:
        """The container's variables that have a value."""
        return {each["name"]: each["value"] for each in self.agent["env"] if "value" in each}

    @property
    def node_verbs(self) -> list[str]:
        """The verbs that it may use with Nodes."""
        (verbs,) = (each["verbs"] for each in self.objects["ClusterRole"]["rules"] if each["resources"] == ["nodes"])
        assert isinstance(verbs, list)
        return verbs


def make(*arguments: str, stdin: str = "") -> Made:
    """Run the command, which has nothing to warn of but kubeadm's empty mode."""
    done = nftproxy("manifests", *arguments, stdin=stdin)
    assert (done.status, [line for line in done.err.splitlines() if EMPTY_MODE not in line]) == (0, [])
    return Made.of(done.out)


@pytest.mark.parametrize("line", ['mode: ""', "mode: null", ""])
def test_an_empty_mode_is_named(line: str) -> None:
    """Kubeadm's empty mode serves node ports at all addresses, as no mode does.  That they narrow is a warning."""
    done = nftproxy("manifests", "-", stdin=CONFIG_MAP.replace('mode: ""', line))
    assert done.err == f"warning: NFT109: -: {EMPTY_MODE}\n"
    assert nftproxy("manifests", "-", stdin=CONFIG_MAP.replace('mode: ""', "mode: nftables")).err == ""


def test_without_a_mode_the_section_of_iptables_counts() -> None:
    """A ConfigMap without a mode has kube-proxy's settings in the section iptables, and they are taken over."""
    text = CONFIG_MAP.replace('mode: ""', "")
    assert "masqueradeAll: false" in text
    assert make("-", stdin=text).config.masquerade_all is False
    assert make("-", stdin=text.replace("masqueradeAll: false", "masqueradeAll: true", 1)).config.masquerade_all


@pytest.mark.parametrize("arguments", every(4, list(WISHES), list(WISHES.values())))
def test_every_object_is_what_the_api_takes(arguments: list[str]) -> None:
    """For every distribution and option each object has only fields of its kind in each version."""
    made = make(*arguments)
    kinds = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet"]
    assert list(made.objects) == [*kinds, *(["PodMonitor"] if "--monitoring" in arguments else [])]
    made.objects["ConfigMap"]["data"] = {"config.yaml": ""}  # `make` has read it
    for version in API_VERSIONS:
        for kind in kinds:
            expect_valid(yaml.safe_dump(made.objects[kind]), version)


@functools.cache
def expect_valid(text: str, version: str) -> None:
    """Assert that the API takes an object.  Equal objects are validated once."""
    kubernetes_validate.validate(yaml.safe_load(text), version, strict=True)


@pytest.mark.parametrize("arguments", WISHES.values(), ids=WISHES)
def test_nothing_is_left_to_fill_in(arguments: list[str]) -> None:
    """No word of it asks its reader for anything, and the API is reached without a Service."""
    done = nftproxy("manifests", *arguments)
    assert not re.search(r"FILL|TODO|<[A-Za-z]|\{\{|example\.org/CHANGE|undefined|None", done.out)
    environment = make(*arguments).environment
    assert environment["KUBERNETES_SERVICE_HOST"]
    assert int(environment["KUBERNETES_SERVICE_PORT"])


def test_the_example_is_what_the_command_prints() -> None:
    """examples/deploy/daemonset.yaml is made from the ConfigMap beside it, by the command in kubeadm.md."""
    piped = nftproxy("manifests", "--node-selector", "proxy=nftproxy", "-", stdin=CONFIG_MAP)
    assert piped.out == nftproxy("manifests", *WISHES["the example"]).out == (DEPLOY / "daemonset.yaml").read_text()


# ---- from kube-proxy's ConfigMap -------------------------------------------------------------------------------------


def test_kube_proxys_configuration_is_taken_over() -> None:
    """The agent takes over the file's values, of any mode.  Values of kube-proxy's pod, and defaults, are left out."""
    text = CONFIG_MAP
    for old, new in (
        ("nodePortAddresses: null", "nodePortAddresses: [10.0.0.0/8]"),
        ('mode: ""', "mode: nftables"),
        ('hostnameOverride: ""', "hostnameOverride: node-x"),
        ("oomScoreAdj: null", "oomScoreAdj: -999"),
        ("tcpEstablishedTimeout: null", "tcpEstablishedTimeout: 1h"),
    ):
        assert old in text
        text = text.replace(old, new)
    made = make("-", stdin=text)
    assert [str(each) for each in made.config.node_port_addresses.networks] == ["10.0.0.0/8"]
    assert made.config.conntrack.tcp_established_timeout == 3600
    assert (made.config.kubeconfig, made.config.hostname_override, made.config.oom_score_adj) == ("", "", -997)
    assert yaml.safe_load(made.objects["ConfigMap"]["data"]["config.yaml"]).keys() == {
        *("apiVersion", "kind", "mode", "clusterCIDR", "healthzBindAddress", "metricsBindAddress", "oomScoreAdj"),
        *("nodePortAddresses", "conntrack"),
    }
    assert made.environment["KUBERNETES_SERVICE_HOST"] == "control-plane.example.com"
    assert made.environment["KUBERNETES_SERVICE_PORT"] == "6443"


def test_options_go_before_the_config_map() -> None:
    """Options for address, range and image override the ConfigMap."""
    given = ["--api-server", "https://[fd00::1]", "--cluster-cidr", "10.9.0.0/16", "--image", "example.com/nftproxy:1"]
    made = make(*given, "-", stdin=CONFIG_MAP)
    assert made.environment["KUBERNETES_SERVICE_HOST"] == "fd00::1"
    assert made.environment["KUBERNETES_SERVICE_PORT"] == "443"
    assert [str(each) for each in made.config.cluster_cidrs] == ["10.9.0.0/16"]
    assert {each["image"] for each in (*made.pod["initContainers"], made.agent)} == {"example.com/nftproxy:1"}


def test_the_two_config_maps_of_eks() -> None:
    """A list of ConfigMaps whose keys have other names is understood, too.  Pods of EKS are known by interfaces."""
    data = yaml.safe_load(CONFIG_MAP)["data"]
    config = data["config.conf"].replace("clusterCIDR: 10.244.0.0/16", 'clusterCIDR: ""')
    maps = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {key: text}}
        for name, key, text in (
            ("kube-proxy", "kubeconfig", data["kubeconfig.conf"]),
            ("kube-proxy-config", "config", config),
        )
    ]
    made = make("--for", "eks", "-", stdin=yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": maps}))
    assert made.environment["KUBERNETES_SERVICE_HOST"] == "control-plane.example.com"
    assert made.config.cluster_cidrs == ()
    assert local_sources(Node("a"), made.config, Family.IPV4) == ENI


@pytest.mark.parametrize(
    ("stdin", "fault"),
    [
        (
            "",
            "-: has 0 KubeProxyConfigurations where one is needed; without one, options give",
        ),
        ("kind: ConfigMap\ndata: {a: 1, b: text, c: 'kind: Pod', d: 'a: ['}", "-: has 0 KubeProxyConfigurations"),
        ("- 1\n---\nkind: ConfigMap\ndata: []\n---\nkind: List\nitems: [1]", "-: has 0 KubeProxyConfigurations"),
        (CONFIG_MAP + "---\n" + CONFIG_MAP, "-: has 2 KubeProxyConfigurations"),
        (
            "kind: ConfigMap\ndata: {config.conf: 'kind: KubeProxyConfiguration, a: ['}",
            "-: ConfigMap: data[config.conf]: ",
        ),
        ("a: [", "-: line 1: "),
        (CONFIG_MAP.replace('mode: ""', "mode: []"), "mode: a list is not a string"),
        (CONFIG_MAP.replace('mode: ""', "mode: 0"), "mode: 0 is not a string"),
        (CONFIG_MAP.replace("10.244.0.0/16", "10.244.0.0/33"), "clusterCIDR: '10.244.0.0/33' does not appear to be"),
    ],
)
def test_what_is_no_config_map_of_kube_proxy(stdin: str, fault: str) -> None:
    """Input without a configuration, with two, or that can't be read is an error, and nothing is printed."""
    done = nftproxy("manifests", "-", stdin=stdin)
    assert (done.status, done.out) == (2, "")
    assert fault in done.err


# ---- unknown values --------------------------------------------------------------------------------------------------

RANGE = "error: NFT112: the range of the cluster's pods isn't known: give --cluster-cidr RANGE, or --cni PLUGIN"
ADDRESS = "error: NFT112: the address of the API server isn't known: give --api-server URL"


@pytest.mark.parametrize(
    ("arguments", "unknown"),
    [
        ([], [RANGE, ADDRESS]),
        (["--for", "kops"], [RANGE, ADDRESS]),
        (["--for", "kops", "--cluster-cidr", "10.0.0.0/8"], [ADDRESS]),
        (["--for", "kubeadm", "--api-server", "https://10.0.0.1:6443"], [RANGE]),
        (["--for", "eks"], [ADDRESS]),
    ],
)
def test_what_is_not_known_is_named_with_its_option(arguments: list[str], unknown: list[str]) -> None:
    """All that a distribution doesn't settle is asked for at once, by the option to give."""
    done = nftproxy("manifests", *arguments)
    assert (done.status, done.out) == (2, "")
    lines = done.err.splitlines()
    assert len(lines) == len(unknown)
    assert all(line.startswith(start) for line, start in zip(lines, unknown, strict=True))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--api-server", "10.0.0.1:6443"], "'10.0.0.1:6443' is not a URL as in https://10.0.0.1:6443"),
        (["--api-server", "https://:6443"], "is not a URL"),
        (["--api-server", "https://a:port"], "is not a URL"),
        (["--api-server", "https://kubernetes.default.svc"], "kubernetes.default.svc is a Service"),
        (["--cluster-cidr", "10.0.0.0"], "--cluster-cidr: '10.0.0.0' is not a CIDR"),
        (["--image", "a b"], "'a b' is not the name of an image"),
        (["--namespace", "a.b"], "'a.b' is not the name of a namespace"),
        (["--image-pull-secret", "a b"], "'a b' is not the name of a Secret"),
        (["--resources", "[1]"], "'[1]' is not a mapping in YAML"),
        (["--tolerations", "a: b"], "'a: b' is not a list in YAML"),
        (["--affinity", "a: ["], "'a: [' is not a mapping in YAML"),
        (["--affinity", "a: b\n---\nc: d"], "is not a mapping in YAML"),
        (["--pod-label", "team=a b"], "'team=a b' is not NAME=VALUE"),
        (["--pod-annotation", "team"], "'team' is not NAME=VALUE"),
        (["--node-selector", "proxy"], "'proxy' is not NAME=VALUE"),
        (["--node-selector", "proxy-=x"], "'proxy-=x' is not NAME=VALUE"),
        (["--node-selector", "a..b/proxy=x"], "'a..b/proxy=x' is not NAME=VALUE"),
        (["--startup-taint", "node.kubernetes.io/not-ready"], "is one of Kubernetes' own taints"),
        (["--service-proxy-name", "a/b"], "--service-proxy-name: 'a/b' is not the value of a label"),
        (["--for", "aws"], "'aws' is not one of"),
        (
            ["--for", "openshift"],
            "'--for': not possible on OpenShift: OVN-Kubernetes serves Services (docs/install.md)",
        ),
    ],
)
def test_a_wish_that_can_not_be(arguments: list[str], fault: str) -> None:
    """A value that no object could have is an error, which names its option, and nothing is printed."""
    done = nftproxy("manifests", *KNOWN, *arguments)
    assert (done.status, done.out) == (2, "")
    assert fault in done.err


# ---- the effect of options -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "address", "ranges"),
    [
        ("k3s", ("127.0.0.1", "6444"), ["10.42.0.0/16"]),
        ("rke2", ("127.0.0.1", "6443"), ["10.42.0.0/16"]),
        ("talos", ("localhost", "7445"), ["10.244.0.0/16"]),
    ],
)
def test_distributions_with_a_load_balancer_on_each_node_need_no_option(
    name: str, address: tuple[str, str], ranges: list[str]
) -> None:
    """If the distribution has address and range, no option is needed, and an option for the range counts."""
    made = make("--for", name)
    environment = made.environment
    assert (environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]) == address
    assert [str(each) for each in made.config.cluster_cidrs] == ranges
    other = make("--for", name, "--cluster-cidr", "10.9.0.0/16")
    assert [str(each) for each in other.config.cluster_cidrs] == ["10.9.0.0/16"]


ENI = LocalSources("detectLocal.interfaceNamePrefix", interface="eni*")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--for", "eks"], 'iifname "eni*"'),
        (["--for", "eks", "--cluster-cidr", "10.9.0.0/16"], "ip saddr 10.9.0.0/16"),
        (["--for", "eks", "--cni", "calico"], 'iifname "cali*"'),
        (["--for", "kops", "--cni", "cilium"], 'iifname "lxc*"'),
        (["--cni", "ptp"], 'iifname "veth*"'),
        (["--cni", "bridge"], 'iifname "cni0"'),
        (["--for", "k3s"], "ip saddr 10.42.0.0/16"),
        (["--for", "k3s", "--cni", "calico"], 'iifname "cali*"'),
    ],
)
def test_pods_are_local_sources(arguments: list[str], match: str) -> None:
    """Each distribution's agent recognises the pods of its node, by a range or by the network plugin's interfaces."""
    made = make(*arguments, "--api-server", "https://10.0.0.1:6443")
    found = local_sources(Node("a"), made.config, Family.IPV4)
    assert found
    assert found.match(Family.IPV4) == match


@pytest.mark.parametrize(
    ("names", "interface"),
    [
        (("aws-node", "calico-node"), "eni*"),
        (("calico-node", "node-exporter"), "cali*"),
        (("cilium",), "lxc*"),
        (("kindnet",), "veth*"),
        (("kube-flannel-ds",), "cni0"),
    ],
)
def test_the_network_plugin_is_told_by_its_daemon_set(names: tuple[str, ...], interface: str) -> None:
    """Where kube-proxy's configuration has no range, the plugin's DaemonSet in the same file tells the interfaces."""
    config = CONFIG_MAP.replace("clusterCIDR: 10.244.0.0/16", 'clusterCIDR: ""')
    sets = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}} for name in names]
    items = [yaml.safe_load(config), *sets]
    made = make("-", stdin=yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    found = local_sources(Node("a"), made.config, Family.IPV4)
    assert found
    assert found.interface == interface
    ranged = make("-", stdin=yaml.safe_dump({"kind": "List", "items": [yaml.safe_load(CONFIG_MAP), *sets]}))
    assert [str(each) for each in ranged.config.cluster_cidrs] == ["10.244.0.0/16"]


def test_pods_are_recognised_in_one_way() -> None:
    """A range and a network plugin together are a usage error."""
    assert nftproxy("manifests", "--cluster-cidr", "10.9.0.0/16", "--cni", "calico").status == 2


def test_a_wrong_field_would_be_found() -> None:
    """The schemas are strict: a misspelt field is no field."""
    wrong = make(*KNOWN).objects["ServiceAccount"] | {"automountServiceAccountTokens": False}
    with pytest.raises(kubernetes_validate.ValidationError):
        expect_valid(yaml.safe_dump(wrong), API_VERSIONS[-1])


def test_monitoring_opens_the_metrics() -> None:
    """Without the option metrics are for the node alone.  With it they are for everyone, at a named port."""
    without, monitored = make(*KNOWN), make(*KNOWN, "--monitoring")
    assert without.config.metrics_bind_address == "127.0.0.1:10249"
    assert [each["name"] for each in without.agent["ports"]] == ["healthz"]
    assert monitored.config.metrics_bind_address == "0.0.0.0:10249"
    assert {each["name"]: each["containerPort"] for each in monitored.agent["ports"]} == {
        "healthz": 10256,
        "metrics": 10249,
    }


def test_prometheus_scrapes_it_as_the_example_says() -> None:
    """The PodMonitor is that of examples/monitoring, except that a canary is not taken for the kube-proxy beside it."""
    example = yaml.safe_load((CHECKOUT / "examples" / "monitoring" / "podmonitor.yaml").read_text())
    assert make(*KNOWN, "--monitoring").objects["PodMonitor"] == example
    canary = make(*KNOWN, "--monitoring", "--service-proxy-name", "canary").objects["PodMonitor"]
    (endpoint,) = canary["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][0] == {"targetLabel": "job", "replacement": "nftproxy"}


def test_the_comment_says_what_is_to_be_done_on_the_nodes() -> None:
    """The comment says how to turn kube-proxy off, and with a startup taint how nodes get it."""
    top = nftproxy("manifests", "--for", "talos", "--startup-taint", "example.org/wait").out.partition("apiVersion")[0]
    lines = [line.removeprefix("#") for line in top.splitlines()]
    for setting in (DISTRIBUTIONS["talos"].off, DISTRIBUTIONS["talos"].taint):
        text = setting.text.replace("nftproxy.dev/not-ready", "example.org/wait")
        assert f" {setting.where}:" in "".join(lines)
        assert "".join(f"     {line}\n" for line in text.splitlines()) in "\n".join(lines) + "\n"
    assert f" Then: {DISTRIBUTIONS['talos'].then}" in lines
    assert "example.org/wait" not in nftproxy("manifests", "--for", "talos").out


def test_only_a_startup_taint_takes_the_rights_to_get_and_patch_nodes() -> None:
    """The right to change Nodes is there with the option and not without."""
    without, tainted = make(*KNOWN), make(*KNOWN, "--startup-taint", "nftproxy.dev/not-ready")
    assert without.node_verbs == ["list", "watch"]
    assert tainted.node_verbs == ["list", "watch", "get", "patch"]
    assert (without.config.startup_taint, tainted.config.startup_taint) == ("", "nftproxy.dev/not-ready")


def test_nothing_is_privileged_without_sysctls() -> None:
    """The option, or a configuration that asks for no sysctl, leaves out the only privileged container."""
    none = "{maxPerCore: 0, min: 5, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}"
    asks_for_none = re.sub(r"conntrack:\n(      .*\n)+", f"conntrack: {none}\n", CONFIG_MAP)
    for made in (make("--no-sysctls", "-", stdin=CONFIG_MAP), make("-", stdin=asks_for_none)):
        assert "initContainers" not in made.pod
        assert "privileged" not in made.agent["securityContext"]
        assert [each for each in wanted(made.config, 8) if each != OOM_SCORE_ADJ] == []
    (setting,) = make("-", stdin=CONFIG_MAP).pod["initContainers"]
    assert setting["securityContext"]["privileged"]
    for field in ("tcpBeLiberal: true", "udpTimeout: 30s"):
        made = make("-", stdin=asks_for_none.replace(none, f"{none[:-1]}, {field}}}"))
        assert "initContainers" in made.pod


def test_pods_are_as_their_options_say() -> None:
    """Each option about the pods has its place, and the API takes the result."""
    made = make(
        *KNOWN,
        *("--namespace", "proxy", "--image-pull-secret", "a", "--image-pull-secret", "b"),
        *("--resources", "{limits: {memory: 2Gi}}", "--tolerations", "[{key: k, operator: Exists}]"),
        *("--affinity", "{nodeAffinity: {}}", "--pod-label", "team=net", "--pod-annotation", "note=two words"),
    )
    expect_valid(yaml.safe_dump(made.objects["DaemonSet"]), API_VERSIONS[-1])
    assert {each["metadata"].get("namespace", "proxy") for each in made.objects.values()} == {"proxy"}
    assert made.objects["ClusterRoleBinding"]["subjects"][0]["namespace"] == "proxy"
    assert made.pod["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    containers = [*made.pod["initContainers"], made.agent]
    assert [each["resources"] for each in containers] == [{"limits": {"memory": "2Gi"}}] * 2
    assert made.pod["tolerations"] == [{"key": "k", "operator": "Exists"}]
    assert made.pod["affinity"] == {"nodeAffinity": {}}
    metadata = made.objects["DaemonSet"]["spec"]["template"]["metadata"]
    assert metadata == {
        "labels": {"app.kubernetes.io/name": "nftproxy", "team": "net"},
        "annotations": {"note": "two words"},
    }
    assert made.objects["DaemonSet"]["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/name": "nftproxy"}


@pytest.mark.parametrize("arguments", [["-"], *(["--for", name, *KNOWN] for name in DISTRIBUTIONS)])
def test_nodes_that_can_run_no_agent_are_avoided(arguments: list[str]) -> None:
    """Pods avoid nodes of virtual-kubelet, Liqo, Fargate and EKS Auto Mode, whatever distribution is named, or none."""
    affinity = make(*arguments, stdin=CONFIG_MAP).pod["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [(each["key"], each["operator"], each["values"]) for each in term["matchExpressions"]] == [
        ("eks.amazonaws.com/compute-type", "NotIn", ["fargate", "auto"]),
        ("liqo.io/type", "NotIn", ["virtual-node"]),
        ("type", "NotIn", ["virtual-kubelet"]),
    ]


def test_an_affinity_replaces_that_of_the_distribution() -> None:
    """The administrator says where pods go."""
    assert make(*KNOWN, "--affinity", "{podAffinity: {}}").pod["affinity"] == {"podAffinity": {}}


def test_alerts_are_those_of_the_example() -> None:
    """The alerts are those of examples/monitoring, in the namespace of the objects, and a canary's have its job."""
    text = (CHECKOUT / "examples" / "monitoring" / "rules.yaml").read_text()
    assert make(*KNOWN, "--alerts").objects["PrometheusRule"] == yaml.safe_load(text)
    canary = make(*KNOWN, "--alerts", "--service-proxy-name", "canary", "--namespace", "proxy").objects[
        "PrometheusRule"
    ]
    wanted = text.replace('job="kube-proxy"', 'job="nftproxy"').replace("namespace: kube-system", "namespace: proxy")
    assert wanted.count('job="nftproxy"') > 1
    assert canary == yaml.safe_load(wanted)


def test_monitoring_without_the_operator_has_no_pod_monitor() -> None:
    """Without the operator's kinds metrics are open all the same."""
    made = make(*KNOWN, "--monitoring", "--no-pod-monitor")
    assert "PodMonitor" not in made.objects
    assert made.config.metrics_bind_address == "0.0.0.0:10249"


def test_a_canary_leaves_the_node_to_kube_proxy() -> None:
    """It has other ports, asks for no ServiceCIDRs, sets no sysctls, and is on every node."""
    made = make("--service-proxy-name", "canary", "-", stdin=CONFIG_MAP)
    assert made.config.service_proxy_name == "canary"
    assert (made.config.healthz_bind_address, made.config.metrics_bind_address) == ("0.0.0.0:10356", "127.0.0.1:10349")
    assert [each["containerPort"] for each in made.agent["ports"]] == [10356]
    assert not any("servicecidrs" in each["resources"] for each in made.objects["ClusterRole"]["rules"])
    assert "initContainers" not in made.pod
    assert made.pod["nodeSelector"] == {"kubernetes.io/os": "linux"}


def test_health_is_asked_for_where_it_is_answered() -> None:
    """If the configuration has an address, the probes use it, else the node's."""
    for address, host in (('""', None), ("127.0.0.1:10256", "127.0.0.1"), ('"[fd00::1]:10256"', "fd00::1")):
        made = make("-", stdin=CONFIG_MAP.replace('healthzBindAddress: ""', f"healthzBindAddress: {address}"))
        for probe in ("livenessProbe", "readinessProbe"):
            assert made.agent[probe]["httpGet"].get("host") == host


def test_the_image_has_the_version_of_the_package_by_default() -> None:
    """Without an option the image has the version of this package."""
    assert make(*KNOWN).agent["image"] == f"nftproxy:{__version__}"


# ---- docs/install.md -------------------------------------------------------------------------------------------------

INSTALL = (CHECKOUT / "docs" / "install.md").read_text()
SECTIONS = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", INSTALL, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_each_distribution_has_its_recipe(name: str) -> None:
    """Its section shows, to the letter, how kube-proxy is turned off, the next step, and how the taint is set."""
    distribution = DISTRIBUTIONS[name]
    section = SECTIONS[distribution.title]
    blocks = re.findall(r"^```yaml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert blocks == [distribution.off.text, distribution.taint.text]
    assert distribution.then in section.replace("\n", " ").replace("`", "")
    assert f"manifests --for {name}" in section or name == "kubeadm"
    assert distribution.api_server in section
    assert all(isinstance(yaml.safe_load(block), dict) for block in blocks)


WHOLE = {each.title for each in IMPOSSIBLE.values()}
"""Distributions in which nftproxy can't replace kube-proxy."""
NODES = {"EKS Auto Mode", "Fargate", "virtual-kubelet", "Liqo"}
"""Kinds of nodes on which it can't."""
RELATED = {"kind", "minikube", "Kubespray", "Cluster API", "Gardener", "k3d", "OKE"}
"""Distributions that take the `--for` of another distribution."""
CLOSED = {"LKE", "IKS", "ACK", "OVHcloud", "Kapsule", "Tanzu", "Charmed Kubernetes"}
"""Distributions where no way to turn off kube-proxy is known."""
SYSTEMS = {"Flatcar", "Bottlerocket", "Amazon Linux"}
"""Operating systems of nodes, for any distribution."""


def first_cells(page: str, heading: str) -> set[str]:
    """The names in the first cells of the table below a heading."""
    section = (CHECKOUT / "docs" / page).read_text().partition(heading)[2].partition("\n#")[0]
    cells = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    return {name.removesuffix(", also of Rancher") for cell in cells for name in re.split(r", (?!also)", cell)}


def test_each_distribution_has_a_row() -> None:
    """The pages name each distribution of `--for` and its relatives, nodes' systems, and what can't have nftproxy."""
    known = {each.title for each in DISTRIBUTIONS.values()}
    assert first_cells("migrate.md", "### Distribution by distribution") - {"---", "distribution"} == {
        *known, *SYSTEMS, *RELATED, "[others](install.md#others)"
    }  # fmt: skip
    named = {each.partition(" (")[0] for each in first_cells("install.md", "### Others")}
    assert named >= WHOLE | NODES | SYSTEMS | RELATED | CLOSED
    tried = {"RHEL 9", "Ubuntu 22.04", "Ubuntu 24.04", "Talos", "Amazon Linux 2023"} | SYSTEMS - {"Amazon Linux"}
    assert first_cells("support.md", "## Other distributions") - {"---", "distribution"} == tried


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_distribution_says_why(name: str) -> None:
    """The command's error is the sentence of docs/install.md."""
    title, why = IMPOSSIBLE[name]
    done = nftproxy("manifests", "--for", name, *KNOWN)
    assert (done.status, done.out) == (2, "")
    assert f"not possible on {title}: {why} (docs/install.md)" in done.err
    assert re.search(rf"^\| {title}\b.* \| not possible: {re.escape(why)}", INSTALL, re.MULTILINE)


def test_a_startup_taint_is_the_same_everywhere() -> None:
    """Every distribution's setting has one taint of the key that the documentation uses, with the effect NoSchedule."""
    for distribution in DISTRIBUTIONS.values():
        text = distribution.taint.text
        assert len(re.findall(r"nftproxy\.dev/not-ready", text)) == 1
        assert text.count("NoSchedule") == 1


def test_manifests_are_read_from_a_file(tmp_path: Path) -> None:
    """A file that is a KubeProxyConfiguration itself does as well, without an address of the API."""
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_load(CONFIG_MAP)["data"]["config.conf"])
    assert ADDRESS in nftproxy("manifests", file).err
    assert make("--api-server", "https://10.0.0.1:6443", str(file)).environment["KUBERNETES_SERVICE_HOST"] == "10.0.0.1"


@pytest.mark.parametrize("clusters", ["5", "{a: b}", "[5, {cluster: 5}]"])
def test_a_kubeconfig_without_clusters_has_no_address(clusters: str) -> None:
    """If the clusters of a kubeconfig aren't clusters, the address of the API server isn't known."""
    config = yaml.safe_load(CONFIG_MAP)["data"]["config.conf"]
    done = nftproxy("manifests", "-", stdin=f"{config}\n---\nkind: Config\nclusters: {clusters}\n")
    assert (done.status, done.out) == (2, "")
    assert ADDRESS in done.err
