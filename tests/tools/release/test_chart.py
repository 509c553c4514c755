"""The Helm chart and the kustomize base make the objects that `nftproxy manifests` prints."""

from __future__ import annotations

import operator
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from nftproxy import __version__
from tests.commands.test_manifests import Made, make
from tests.support.helm import merged, rendered
from tools.release.chart import chart
from tools.release.kustomize import kustomize

FILES = chart(__version__)
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
        merged(HOST | RANGE, {"config": {"nftproxy": {"startupTaint": "example.org/wait"}}}),
        [*KNOWN, "--startup-taint", "example.org/wait"],
    ),
    "interfaces": (
        HOST | {"config": {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": "cali"}}},
        ["--api-server", "https://api.example.com:6443", "--cni", "calico"],
    ),
    "all": (
        merged(HOST | RANGE, {"monitoring": True, "sysctls": False, "config": {"nftproxy": {"startupTaint": "a.b/c"}}}),
        [*KNOWN, "--monitoring", "--no-sysctls", "--startup-taint", "a.b/c"],
    ),
}  # fmt: skip
"""Values of the chart, and the options that mean the same."""


@pytest.mark.parametrize("case", CASES)
def test_the_chart_makes_the_same_objects(case: str) -> None:
    """With values and with options that mean the same, objects and configuration are equal."""
    given, options = CASES[case]
    values = merged(DEFAULTS, given)
    jsonschema.validate(values, SCHEMA)
    expect_same(Made.of(rendered(FILES["templates/agent.yaml"], values)), make(*options))


def expect_same(found: Made, wanted: Made) -> None:
    """Assert that objects and configuration are equal, whatever the text of the latter is."""
    assert found.config == wanted.config
    for made in (found, wanted):
        del made.objects["ConfigMap"]["data"]
    assert found.objects == wanted.objects


@pytest.mark.parametrize(
    "given",
    [
        RANGE,
        HOST,
        HOST | RANGE | {"monitorin": True},
        HOST | RANGE | {"apiServer": {"host": "a", "port": "x"}},
        HOST | {"config": {"clusterCIDR": "10.244.0.0/16", "mode": "iptables"}},
        HOST | {"config": {"clusterCIDR": "10.244.0.0/16", "conntrack": {"min": 1}}, "sysctls": False},
    ],
    ids=["no server", "no range", "unknown", "port", "fixed field", "sysctls twice"],
)
def test_the_schema_refuses_values_that_cannot_work(given: dict[str, Any]) -> None:
    """Missing and unknown values, and fields that the template writes itself, are refused before anything is made."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(DEFAULTS, given), SCHEMA)


def test_every_value_is_documented() -> None:
    """Each value has a comment above it, and the schema knows it."""
    lines = FILES["values.yaml"].splitlines()
    for name in DEFAULTS:
        assert lines[next(n for n, line in enumerate(lines) if line.startswith(f"{name}:")) - 1].startswith("# ")
    assert set(DEFAULTS) == set(SCHEMA["required"])


def test_the_chart_is_of_this_version() -> None:
    """Chart, program and image have the version of the package."""
    about = yaml.safe_load(FILES["Chart.yaml"])
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
