"""The Helm chart and the kustomize base make the objects that `nftproxy manifests` prints."""

from __future__ import annotations

import importlib
import operator
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from nftproxy import __version__
from tests.commands.test_manifests import Made, make
from tests.conftest import CHECKOUT
from tools.project import URL
from tools.release.artifacts import archived
from tools.release.chart import OLDEST, chart
from tools.release.kustomize import kustomize

helm_python = pytest.importorskip("helm_python", reason="there is no Helm for this machine")
helm = importlib.import_module("tests.support.helm")

FILES = chart(__version__)
ARCHIVE = archived(FILES, "nftproxy", 0)
DEFAULTS = yaml.safe_load(FILES["values.yaml"])
SCHEMA = yaml.safe_load(FILES["values.schema.json"])

HOST = {"apiServer": {"host": "api.example.com"}}
RANGE = {"config": {"clusterCIDR": "10.244.0.0/16"}}
KNOWN = ["--api-server", "https://api.example.com:6443", "--cluster-cidr", "10.244.0.0/16"]
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "defaults": (HOST | RANGE, KNOWN),
    "k3s": (
        {"apiServer": {"host": "127.0.0.1", "port": 6444}, "config": {"clusterCIDR": "10.42.0.0/16"}},
        ["--for", "k3s"],
    ),
    "image": (HOST | RANGE | {"image": "example.com/nftproxy:1"}, [*KNOWN, "--image", "example.com/nftproxy:1"]),
    "monitoring": (HOST | RANGE | {"monitoring": True}, [*KNOWN, "--monitoring"]),
    "no sysctls": (HOST | RANGE | {"sysctls": False}, [*KNOWN, "--no-sysctls"]),
    "labels": (HOST | RANGE | {"nodeSelector": {"proxy": "nftproxy"}}, [*KNOWN, "--node-selector", "proxy=nftproxy"]),
    "taint": (
        HOST | {"config": RANGE["config"] | {"nftproxy": {"startupTaint": "example.org/wait"}}},
        [*KNOWN, "--startup-taint", "example.org/wait"],
    ),
    "interfaces": (
        HOST | {"config": {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": "cali"}}},
        ["--api-server", "https://api.example.com:6443", "--cni", "calico"],
    ),
    "two families": (
        HOST | {"config": {"clusterCIDR": ["10.244.0.0/16", "fd00:10::/64"]}},
        ["--api-server", "https://api.example.com:6443", "--cluster-cidr", "10.244.0.0/16,fd00:10::/64"],
    ),
    "secrets": (
        HOST | RANGE | {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
        [*KNOWN, "--image-pull-secret", "a", "--image-pull-secret", "b"],
    ),
    "pods": (
        HOST
        | RANGE
        | {
            "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "1"}},
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "podLabels": {"team": "net"},
            "podAnnotations": {"a/b": "c d"},
        },
        [
            *KNOWN,
            *("--resources", "{limits: {memory: 2Gi}, requests: {cpu: '1', memory: 128Mi}}"),
            *("--tolerations", "[{key: a, operator: Exists}]"),
            *("--affinity", "nodeAffinity: {}", "--pod-label", "team=net", "--pod-annotation", "a/b=c d"),
        ],
    ),
    "no PodMonitor": (
        HOST | RANGE | {"monitoring": True, "podMonitor": False},
        [*KNOWN, "--monitoring", "--no-pod-monitor"],
    ),
    "alerts": (HOST | RANGE | {"alerts": True}, [*KNOWN, "--alerts"]),
    "all": (
        HOST
        | RANGE
        | {
            "monitoring": True,
            "alerts": True,
            "sysctls": False,
            "imagePullSecrets": [{"name": "a"}],
            "podAnnotations": {"a": "b"},
            "affinity": {"podAffinity": {}},
            "config": RANGE["config"] | {"nftproxy": {"startupTaint": "a.b/c"}},
        },
        [
            *KNOWN,
            *("--monitoring", "--alerts", "--no-sysctls", "--startup-taint", "a.b/c", "--image-pull-secret", "a"),
            *("--pod-annotation", "a=b", "--affinity", "podAffinity: {}"),
        ],
    ),
}  # fmt: skip
"""Values of the chart, and the options that mean the same."""


@pytest.mark.parametrize("case", CASES)
def test_the_chart_makes_the_same_objects(case: str) -> None:
    """With values and with options that mean the same, objects and configuration are equal."""
    given, options = CASES[case]
    expect_same(Made.of(helm.rendered(ARCHIVE, given)), make(*options))


def test_the_chart_is_for_any_namespace() -> None:
    """All objects are in the namespace of the Helm release, as `--namespace` puts them there."""
    given = HOST | RANGE | {"monitoring": True, "alerts": True}
    found = Made.of(helm.rendered(ARCHIVE, given, "proxy"))
    expect_same(found, make(*KNOWN, "--monitoring", "--alerts", "--namespace", "proxy"))
    assert {each["metadata"].get("namespace", "proxy") for each in found.objects.values()} == {"proxy"}


def expect_same(found: Made, wanted: Made) -> None:
    """Assert that objects and configuration are equal, whatever the text of the latter is."""
    assert found.config == wanted.config
    for made in (found, wanted):
        del made.objects["ConfigMap"]["data"]
    assert found.objects == wanted.objects


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (RANGE, "apiServer.host is needed"),
        (HOST, "config.clusterCIDR is needed"),
        (HOST | RANGE | {"monitorin": True}, "'monitorin' not allowed"),
        (HOST | RANGE | {"apiServer": {"host": "a", "port": "x"}}, "at '/apiServer/port': got string, want integer"),
        (HOST | {"config": {"clusterCIDR": "banana"}}, "'banana' does not match pattern"),
        (HOST | {"config": {"clusterCIDR": ["10.0.0.0"]}}, "'10.0.0.0' does not match pattern"),
        (HOST | RANGE | {"imagePullSecrets": ["name"]}, "at '/imagePullSecrets/0': got string, want object"),
        (HOST | {"config": RANGE["config"] | {"mode": "iptables"}}, "invalid propertyName 'mode'"),
        (HOST | {"config": RANGE["config"] | {"conntrack": {"min": 1}}, "sysctls": False}, "at '/config/conntrack'"),
    ],
    ids=[
        "no server",
        "no range",
        "unknown",
        "port",
        "no CIDR",
        "no CIDR in a list",
        "secret",
        "fixed",
        "sysctls twice",
    ],
)
def test_values_that_cannot_work_are_refused(given: dict[str, Any], fault: str) -> None:
    """Helm names a missing, unknown or wrong value, and a field that the template writes itself, and makes nothing."""
    with pytest.raises((helm_python.HelmValuesError, helm_python.HelmRenderError), match=re.escape(fault)):
        helm.rendered(ARCHIVE, given)


@pytest.mark.parametrize("version", [OLDEST, "1.36"])
def test_helm_has_nothing_to_say(version: str, tmp_path: Path) -> None:
    """`helm lint --strict` finds nothing wrong with the chart and its defaults."""
    for name, text in FILES.items():
        (tmp_path / "nftproxy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nftproxy" / name).write_text(text)
    assert helm.lint(str(tmp_path / "nftproxy"), strict=True, kube_version=f"v{version}.0") == []


def test_every_value_is_documented() -> None:
    """Each value has a comment above it, and the schema knows it."""
    lines = FILES["values.yaml"].splitlines()
    for name in DEFAULTS:
        assert lines[next(n for n, line in enumerate(lines) if line.startswith(f"{name}:")) - 1].startswith("# ")
    assert set(DEFAULTS) == set(SCHEMA["required"])


def test_the_chart_is_of_this_version() -> None:
    """Chart, program and image have the version of the package."""
    about = yaml.safe_load(FILES["Chart.yaml"])
    assert about["kubeVersion"] == f">={OLDEST}.0-0"
    assert f"Kubernetes {OLDEST} and later" in (CHECKOUT / "docs" / "install.md").read_text()
    assert (about["home"], about["sources"]) == (URL, [URL])
    assert (about["version"], about["appVersion"], DEFAULTS["image"]) == (
        __version__,
        __version__,
        f"nftproxy:{__version__}",
    )


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl, which has kustomize")
def test_the_overlay_makes_the_same_objects(tmp_path: Path) -> None:
    """The overlay that comes with the base makes what the command prints with options that mean the same."""
    for name, text in kustomize(__version__).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    made = subprocess.run(["kubectl", "kustomize", tmp_path / "overlay"], check=True, stdout=subprocess.PIPE, text=True)
    found, wanted = Made.of(made.stdout), make(*KNOWN, "--image", f"registry.example.com/nftproxy:{__version__}")
    for each in (found, wanted):
        each.agent["env"].sort(key=operator.itemgetter("name"))  # a patch puts its variables first
    expect_same(found, wanted)
