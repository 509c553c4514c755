"""The API, systemd and nftproxy itself take the files of examples/deploy, which grant no more than this says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nftproxy import __version__
from nftproxy.commands import cli
from nftproxy.commands.kube_proxy_cleanup import MODES
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.settings import Config
from tests.commands.test_manifests import API_VERSIONS, Made, expect_valid
from tests.conftest import CHECKOUT, NOBODY
from tests.support.command import nftproxy
from tests.support.factories import full_config
from tests.support.processes import killed_on_error
from tests.support.waiting import wait_until
from tools.image.containerfile import packages, setting, stages

DEPLOY = CHECKOUT / "examples" / "deploy"
GUIDE = (DEPLOY / "kubeadm.md").read_text()
UNIT = (DEPLOY / "nftproxy.service").read_text()
BUILD, IMAGE = stages((DEPLOY / "Containerfile").read_text())

RIGHTS = {
    ("", "services"): {"list", "watch"},
    ("discovery.k8s.io", "endpointslices"): {"list", "watch"},
    ("networking.k8s.io", "servicecidrs"): {"list", "watch"},
    ("", "nodes"): {"list", "watch"},
    ("events.k8s.io", "events"): {"create", "patch"},
}
"""All that the proxy may do with the API, by group and resource."""

EXAMPLE = Made.of((DEPLOY / "daemonset.yaml").read_text())
OBJECTS, CONFIG, POD, PROXY = EXAMPLE.objects, EXAMPLE.config, EXAMPLE.pod, EXAMPLE.agent
(SYSCTLS,) = POD["initContainers"]
CLEANUP = yaml.safe_load("".join(re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)))


# ---- daemonset.yaml ------------------------------------------------------------------------------------------------


def without_rights(*command: str) -> list[str]:
    """A command as the proxy's container runs it: another user, with one capability."""
    user = PROXY["securityContext"]["runAsUser"]
    added = ",".join(["-all", *(f"+{each.lower()}" for each in PROXY["securityContext"]["capabilities"]["add"])])
    sets = [f"--{name}={added}" for name in ("inh-caps", "ambient-caps", "bounding-set")]
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *sets, *command]


OWN_NETWORK = """
ip link set lo up
for address in 192.168.0.2/32 fd00:c0a8::2/128; do ip address add $address dev lo; done
for file in ipv4/ip_forward ipv6/conf/all/forwarding; do echo 1 >/proc/sys/net/$file; done
"""
"""A network namespace becomes that of the example's Node, which has its addresses, and forwards as every node does."""


@pytest.mark.usefixtures("namespace")
def test_a_default_installation_logs_no_warning(tmp_path: Path) -> None:
    """After the init container the agent starts with its printed configuration and its few rights without a warning."""
    if subprocess.run(without_rights(sys.executable, "-c", ""), check=False, capture_output=True).returncode:
        pytest.skip("another user can't run this Python, or there is no setpriv")
    made = nftproxy(
        *("manifests", "--for", "kubeadm", "--api-server", "https://192.0.2.1:6443", "--cluster-cidr", "10.1.0.0/16")
    )
    (text,) = Made.of(made.out).objects["ConfigMap"]["data"].values()
    with tempfile.TemporaryDirectory() as name:  # tmp_path is for its owner alone
        directory = Path(name)
        directory.chmod(0o755)
        socket = yaml.safe_dump({"nftproxy": {"agentSocket": ""}})
        (directory / "config.yaml").write_text(text + socket)
        shutil.copytree(CHECKOUT / "examples" / "cluster-ip" / "manifests", directory / "manifests")
        run = [sys.executable, "-m", "nftproxy", "run", f"--config={directory}/config.yaml"]
        subprocess.run([*run, "--init-only"], check=True, cwd=CHECKOUT, capture_output=True)
        log = tmp_path / "log"
        subprocess.run(["bash", "-euc", OWN_NETWORK], check=True)
        with (
            log.open("w") as output,
            subprocess.Popen(
                without_rights(*run, f"--source={directory}/manifests", "--hostname-override=node-a"),
                cwd=CHECKOUT,
                stderr=output,
            ) as agent,
            killed_on_error(agent),
        ):
            wait_until(lambda: "loaded the rules: " in log.read_text(), log.read_text)
            agent.kill()  # on a busy machine the end in good order may take longer than its warning allows
    lines = log.read_text().splitlines()
    assert [line for line in lines if " WARNING " in line or " ERROR " in line] == []


@pytest.mark.parametrize("version", API_VERSIONS)
def test_the_pod_of_the_guide_is_what_the_api_takes(version: str) -> None:
    """The Pod has only fields of its kind in that version.  test_manifests.py tries all other objects."""
    expect_valid(yaml.safe_dump(CLEANUP), version)


def test_objects_belong_together() -> None:
    """Objects refer to each other by their right names."""
    assert list(OBJECTS) == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet"]
    assert {each["metadata"]["name"] for each in OBJECTS.values()} == {"nftproxy"}
    assert POD["serviceAccountName"] == OBJECTS["ServiceAccount"]["metadata"]["name"]
    binding = OBJECTS["ClusterRoleBinding"]
    assert binding["roleRef"]["name"] == OBJECTS["ClusterRole"]["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "nftproxy", "namespace": "kube-system"}]
    assert POD["volumes"][0]["configMap"]["name"] == OBJECTS["ConfigMap"]["metadata"]["name"]
    template = OBJECTS["DaemonSet"]["spec"]["template"]
    assert OBJECTS["DaemonSet"]["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]


def test_rights_are_those_that_are_needed() -> None:
    """The role allows `RIGHTS`, and nothing else."""
    found = {
        (group, resource): set(rule["verbs"])
        for rule in OBJECTS["ClusterRole"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert found == RIGHTS


def test_the_configuration_is_one() -> None:
    """The ConfigMap's file sets the cluster's range and the score, and nothing else."""
    ranges = CONFIG.cluster_cidrs
    assert [str(each) for each in ranges] == ["10.244.0.0/16"]
    assert full_config(cluster_cidrs=ranges, oom_score_adj=-997) == CONFIG  # which the kubelet has set


def test_containers_find_their_configuration() -> None:
    """The path in each command line is the ConfigMap's file where it is mounted."""
    (file,) = OBJECTS["ConfigMap"]["data"]
    for container in (SYSCTLS, PROXY):
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "config")
        assert f"--config={mount['mountPath']}/{file}" in container["args"]


def test_ports_agree_with_the_configuration() -> None:
    """The probes ask where the health server listens, and the metrics are for the node alone."""
    (port,) = PROXY["ports"]
    assert CONFIG.healthz_bind_address == f"0.0.0.0:{port['containerPort']}"
    assert CONFIG.metrics_bind_address == "127.0.0.1:10249"
    probes = {name: PROXY[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "livenessProbe": "/livez",
        "readinessProbe": "/healthz",
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}


def options(command: list[str]) -> set[str]:
    """The options in a command line of nftproxy, each of which the command has."""
    known = {name for each in cli.commands()[command[0]].params for name in each.opts}
    used = {word.partition("=")[0] for word in command[1:] if word.startswith("-")}
    assert used <= known
    return used


def test_command_lines_are_nftproxys() -> None:
    """The containers and the unit give options that the command line has, and the node's name is the pod's node's."""
    assert options(PROXY["args"]) == {"--config", "--hostname-override"}
    assert options(SYSCTLS["args"]) == {"--config", "--init-only"}
    assert options(CLEANUP["spec"]["containers"][0]["args"]) == {"--kube-proxy"}
    assert "--hostname-override=$(NODE_NAME)" in PROXY["args"]
    (name,) = (each for each in PROXY["env"] if each["name"] == "NODE_NAME")
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_the_proxy_has_one_right() -> None:
    """The container that stays has NET_ADMIN and nothing else, and is not root."""
    assert PROXY["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
    }
    assert POD["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert SYSCTLS["securityContext"]["privileged"] is True
    assert not any("hostPath" in volume for volume in POD["volumes"])
    assert not {"hostPID", "hostIPC"} & set(POD)


def test_a_node_that_boots_gets_it() -> None:
    """It runs before anything else can: on every node, in the node's network, by the API's own address."""
    assert POD["hostNetwork"] is True
    assert POD["tolerations"] == [{"operator": "Exists"}]
    assert POD["priorityClassName"] == "system-node-critical"
    assert POD["dnsPolicy"] == "Default"
    assert {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} <= {each["name"] for each in PROXY["env"]}
    assert OBJECTS["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}


def test_images_have_the_version_of_the_package() -> None:
    """Every mention of the image has the tag of this version."""
    texts = [path.read_text() for path in DEPLOY.iterdir()]
    assert {tag for text in texts for tag in re.findall(r"\bnftproxy:(\d[\w.]*)", text)} == {__version__}
    assert {each["image"] for each in (PROXY, SYSCTLS, CLEANUP["spec"]["containers"][0])} == {f"nftproxy:{__version__}"}


# ---- kubeadm.md ----------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """The commands in the guide."""
    return re.findall(r"^    (\S.*)$", re.sub(r"```.*?```", "", GUIDE, flags=re.DOTALL), re.MULTILINE)


def patches() -> Iterator[Any]:
    """The patches in the guide's commands."""
    for command in commands():
        yield from (json.loads(text) for text in re.findall(r"--patch '([^']*)'", command))


def test_commands_of_the_guide_are_shell() -> None:
    """Every command can be parsed."""
    assert len(commands()) > 10
    subprocess.run(["bash", "-n"], input="\n".join(commands()), text=True, check=True)


def test_the_guide_switches_by_one_label() -> None:
    """The same label keeps kube-proxy away and attracts nftproxy, and the last step removes it."""
    affinity, _ = patches()
    (term,) = affinity["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    assert expression == {"key": "proxy", "operator": "NotIn", "values": [POD["nodeSelector"]["proxy"]]}
    made = [command for command in commands() if command.startswith("nftproxy manifests")]
    assert [command.count(f" --node-selector proxy={POD['nodeSelector']['proxy']} ") for command in made] == [1, 0]
    assert "kubectl label node NODE proxy=nftproxy" in commands()
    assert "kubectl label node NODE proxy-" in commands()


def test_the_short_way_keeps_kube_proxys_arguments() -> None:
    """The patch puts nftproxy in the place of kube-proxy's program, with arguments that it has."""
    *_, (replacement,) = patches()
    assert replacement["path"] == "/spec/template/spec/containers/0/command"
    program, *arguments = replacement["value"]
    assert program == json.loads(setting(IMAGE, "ENTRYPOINT"))[0]
    assert options(arguments) == {"--config", "--hostname-override"}


def test_the_guide_names_every_mode() -> None:
    """The guide names every mode of `cleanup --kube-proxy`."""
    (sentence,) = re.findall(r"the mode from step 1 \((.*?)\)", GUIDE)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(MODES)


def test_links_lead_somewhere() -> None:
    """The files that the guide links to are there, and each file here is linked to."""
    linked = {link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", GUIDE) if not link.startswith("../")}
    assert linked | {"kubeadm.md"} == {path.name for path in DEPLOY.iterdir()}


# ---- nftproxy.service ----------------------------------------------------------------------------------------------


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, once the program is one that exists here."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    file = tmp_path / "nftproxy.service"
    file.write_text(UNIT.replace("/opt/nftproxy/bin/nftproxy", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_gives_one_right() -> None:
    """The program has a single capability, no way to more, and the configuration's default score."""
    settings = dict(line.split("=", 1) for line in UNIT.splitlines() if re.match(r"[A-Z]\w+=", line))
    assert settings["CapabilityBoundingSet"] == settings["AmbientCapabilities"] == "CAP_NET_ADMIN"
    assert settings["DynamicUser"] == settings["NoNewPrivileges"] == "yes"
    assert settings["SupplementaryGroups"] == "nftproxy"
    assert settings["User"] == "nftproxy-agent", "systemd makes no user with the name of a group that exists"
    assert "LoadCredential" not in settings, "a copy of the kubeconfig stays old after a rotation"
    assert settings["OOMScoreAdjust"] == str(Config().oom_score_adj)
    assert options(settings["ExecStart"].split()[1:]) == {"--config"}
    assert settings["ExecStartPre"].startswith("+")
    assert options(settings["ExecStartPre"].split()[1:]) == {"--config", "--init-only"}


@pytest.mark.usefixtures("namespace")
def test_a_user_with_that_one_right_can_write_rules() -> None:
    """With an ambient CAP_NET_ADMIN anybody can change a network namespace's rules, as a DynamicUser will."""
    if not shutil.which("setpriv"):
        pytest.skip("there is no setpriv")
    only = "-all,+net_admin"
    rights = [f"--inh-caps={only}", f"--ambient-caps={only}", f"--bounding-set={only}", "--no-new-privs"]
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    code = (
        "from nftproxy.kernel.libnftables import Kernel, Transaction;"
        "Kernel().apply(Transaction('table ip nftproxy {}\\n'));"
        "from nftproxy.kernel.capabilities import missing_features; assert missing_features() == []"
    )
    if not os.access(CHECKOUT, os.X_OK):
        pytest.skip("nobody may not read this checkout")
    subprocess.run(["setpriv", *user, *rights, sys.executable, "-c", code], cwd=CHECKOUT, check=True)
    assert Kernel().read_back(Family.IPV4) is not None


# ---- Containerfile -------------------------------------------------------------------------------------------------


def test_packages_are_those_that_setup_asks_for() -> None:
    """The image has the packages of .ci/setup without those for tests, and packages for `cleanup` and the user."""
    setup = set(re.findall(r"^need ([-a-z0-9]+)", (CHECKOUT / ".ci" / "setup").read_text(), re.MULTILINE))
    found, for_build = packages(BUILD), {"binutils-multiarch", "libcap2-bin", "python3-venv"}
    assert {"iptables", "nftables", "python3-nftables"} | for_build <= found
    assert {"nftables", "python3-nftables", "python3-venv"} <= setup
    assert "trixie" in (CHECKOUT / "tools" / "debian" / "debian.sh").read_text()
    base, image = (setting(stage, "FROM") for stage in (BUILD, IMAGE))
    assert re.fullmatch(r"--platform=\$BUILDPLATFORM debian:trixie-slim@sha256:[0-9a-f]{64} AS build", base)
    assert image == "scratch"


def test_what_is_copied_is_there() -> None:
    """Every file that the image is built from is in the checkout, and all that building the wheel takes is copied."""
    copied = {name for line in BUILD if line.instruction == "COPY" for name in line.text.split()[:-1]}
    pinned = {"examples/deploy/requirements.txt", "examples/deploy/build-requirements.txt"}
    assert copied == {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "nftproxy", "templates"} | pinned
    assert all((CHECKOUT / name).exists() for name in copied)
    ignored = (CHECKOUT / "tools" / "image" / "containerignore").read_text().split()
    assert {line.removeprefix("!").replace("*requirements", "requirements") for line in ignored if line[0] == "!"} == (
        copied - {"examples/deploy/build-requirements.txt"}
    )


def test_the_image_holds_what_the_project_asks_for_pinned_and_hashed() -> None:
    """Each dependency of pyproject.toml, and of building the wheel, is pinned to a version with its hashes."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    for wanted, file in (
        (project["project"]["dependencies"], "requirements.txt"),
        (project["build-system"]["requires"], "build-requirements.txt"),
    ):
        text = (DEPLOY / file).read_text().replace("\\\n", " ")
        pinned = dict(re.findall(r"^([a-z0-9-]+)==\S+.* --hash=(sha256:[0-9a-f]{64})$", text, re.MULTILINE))
        assert {re.split("[>=<]", each)[0] for each in wanted} <= pinned.keys()
        assert len(pinned) == len([line for line in text.splitlines() if not line.startswith("#")])


def test_the_image_says_what_it_is() -> None:
    """Its labels have the version, the project's address and the licence, and the commit that the builder gives."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    labels = dict(word.split("=", 1) for word in shlex.split(setting(IMAGE, "LABEL")))
    assert {name.removeprefix("org.opencontainers.image."): value for name, value in labels.items()} == {
        "title": project["name"],
        "version": __version__,
        "revision": "$COMMIT",
        "source": project["urls"]["Source"],
        "licenses": project["license"],
    }


def test_the_image_is_what_the_daemonset_expects() -> None:
    """The user is the same, and the program of the proxy's container has the capability."""
    assert setting(IMAGE, "USER") == f"{PROXY['securityContext']['runAsUser']}:{PROXY['securityContext']['runAsGroup']}"
    assert PROXY["command"] == ["/venv/bin/python-net-admin", "-m", "nftproxy"]
    assert f"setcap cap_net_admin=ep /image{PROXY['command'][0]}" in "".join(line.text for line in BUILD)
    assert json.loads(setting(IMAGE, "ENTRYPOINT")) == ["/venv/bin/nftproxy"]
