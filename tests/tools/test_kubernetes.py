"""The cluster tool's pure parts: names, addresses, images, results.  A cluster needs binaries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from nftproxy_conformance.lab import obstacle

from nftproxy.config.parse_config import parse_config
from nftproxy.installed_fields import FIELDS
from tests.support.processes import CHECKOUT
from tools.kubernetes.__main__ import main
from tools.kubernetes.binaries import CLUSTER, VARIABLE, Binaries
from tools.kubernetes.cluster import COREDNS
from tools.kubernetes.deployment import config_map
from tools.kubernetes.end_to_end import skips
from tools.kubernetes.images import AGNHOST_IMAGE, PAUSE, TARGETS, wanted
from tools.kubernetes.judging import verdict
from tools.kubernetes.layout import DNS_SERVICE, places
from tools.kubernetes.recording import fate, told
from tools.kubernetes.results import FAILED, NOT_RUN, PASSED, SpecResult, read, summary
from tools.migration.switch import Account, Step
from tools.migration.traffic import Try

needs_root = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


# Without binaries


@needs_root
def test_without_a_folder_it_says_what_it_lacks() -> None:
    """Without binaries it prints one line, which says that nothing was tried, and ends with success."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-m", "tools.kubernetes"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=CHECKOUT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "kubernetes: skipped, nothing was tried: no folder of Kubernetes' release binaries: "
        "give --binaries DIRECTORY, or set NFTPROXY_KUBERNETES\n"
    )


@needs_root
@pytest.mark.parametrize(
    "step",
    [
        "cluster",
        "conformance",
        "glance",
        "tests",
        "restarts",
    ],
)
def test_each_step_says_what_it_lacks(step: str, tmp_path: Path) -> None:
    """With an empty folder each step names missing programs, and ends with success."""
    done = CliRunner().invoke(main, ["--binaries", str(tmp_path), *step.split()])
    assert done.exit_code == 0
    assert done.output.startswith(f"kubernetes: skipped, nothing was tried: {tmp_path} lacks ")


def test_missing_programs_are_named(tmp_path: Path) -> None:
    """Each program that isn't there, or can't be run, is named."""
    for name in CLUSTER:
        (tmp_path / name).touch(0o755)
    (tmp_path / "kubelet").chmod(0o644)
    (tmp_path / "kubectl").unlink()
    assert Binaries(tmp_path).lack(CLUSTER) == f"{tmp_path} lacks kubelet, kubectl"


def test_the_versions_of_a_cluster_are_told() -> None:
    """The API server's version comes first.  Each other version has the names of its programs."""
    assert told({"kube-apiserver": "1.36.2", "kubelet": "1.36.2"}) == "v1.36.2"
    given = {"kube-apiserver": "1.28.3", "kubelet": "1.28.3", "kubectl": "1.36.2", "e2e.test": "1.36.2"}
    assert told(given) == "v1.28.3, kubectl and e2e.test of v1.36.2"


@pytest.mark.parametrize(
    "script", ["echo Kubernetes v1.28.3", "echo Client Version: v1.28.3; echo Kustomize Version: v5.8.1"]
)
def test_programs_say_their_version(tmp_path: Path, script: str) -> None:
    """The first version in the output is the program's."""
    program = tmp_path / "kubelet"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert Binaries(tmp_path).version("kubelet") == "1.28.3"


# Names and addresses


def test_nodes_have_names_zones_and_addresses() -> None:
    """Nodes are numbered from 1 on, take turns at zones, and have ranges of pods that don't overlap."""
    found = places(6, 3)
    assert [(place.name, place.zone) for place in found[2:4]] == [("node-3", "zone-c"), ("node-4", "zone-a")]
    assert (found[0].address, found[0].address6) == ("172.31.240.11", "fd00:31::b")
    assert found[5].pods == ("10.244.6.0/24", "fd00:244:0:6::/64")
    assert len({pods for place in found for pods in place.pods}) == 12


def test_the_last_node_has_addresses() -> None:
    """The largest cluster's last node is still within the nodes' network, and its interface has a legal name."""
    last = places(200, 1)[-1]
    assert (last.address, last.pods[0]) == ("172.31.240.210", "10.244.200.0/24")
    assert len(last.link) <= 15


@pytest.mark.parametrize(("nodes", "zones"), [(0, 1), (201, 1), (2, 3), (2, 0)])
def test_impossible_clusters_are_denied(nodes: int, zones: int) -> None:
    """A cluster needs a node for each zone, and has at most 200."""
    with pytest.raises(ValueError, match="nodes in"):
        places(nodes, zones)


def test_kube_proxys_config_map_is_for_the_cluster() -> None:
    """It has the cluster's server, both ranges of pods and nftables mode, and leaves sysctls alone."""
    data = yaml.safe_load(config_map("https://172.31.240.1:6443"))["data"]
    assert "server: https://172.31.240.1:6443\n" in data["kubeconfig.conf"]
    given = yaml.safe_load(data["config.conf"])
    config, _ = parse_config(given, "ConfigMap", FIELDS)
    assert list(map(str, config.cluster_cidrs)) == ["10.244.0.0/16", "fd00:244::/48"]
    assert given["mode"] == "nftables"
    assert (config.conntrack.max_per_core, config.conntrack.min) == (0, 0)


# Images

REGRESSION = "regression-issue-74839:1.5"


def test_images_are_built_under_the_names_that_the_tests_ask_for() -> None:
    """An image of the tests is built if its program is there, in the versions that the tests name."""
    agnhost, regression = (f"registry.k8s.io/e2e-test-images/{name}" for name in ("agnhost:2.63.0", REGRESSION))
    pause = "registry.k8s.io/pause:3.10.2"
    listing = f"{agnhost}\ngcr.io/k8s-authenticated-test/agnhost:2.6\nregistry.k8s.io/nginx:1\n{pause}\n{regression}\n"
    found = wanted(listing)
    assert found == wanted(listing, ["regression"]) | {"regression": [regression]}
    assert (found["pause"], found["agnhost"]) == ([PAUSE, pause], [AGNHOST_IMAGE, agnhost])


# DNS


def test_coredns_has_the_address_and_the_image_of_the_cluster() -> None:
    """Pods ask the address of this Service, and nodes have the image of this Deployment."""
    found = {each["kind"]: each["spec"] for each in yaml.safe_load_all(COREDNS.read_text()) if "spec" in each}
    assert found["Service"]["clusterIP"] == DNS_SERVICE
    (container,) = found["Deployment"]["template"]["spec"]["containers"]
    assert TARGETS[container["image"]] == "coredns"


# Results


def spec(state: str, *texts: str, message: str = "", kind: str = "It") -> dict[str, Any]:
    """A test in Ginkgo's report."""
    failure = {"Failure": {"Message": message}} if message else {}
    *containers, leaf = texts
    named = {"ContainerHierarchyTexts": containers or None, "LeafNodeText": leaf, "LeafNodeType": kind}
    return {**named, "State": state, **failure}


REPORT: list[dict[str, Any]] = [
    {
        "SpecReports": [
            spec("passed", "[sig-network] Services", "should serve [Conformance]"),
            spec("failed", "[sig-network] DNS", "by name", "[Slow] should resolve", message="timed out\nafter 5 s"),
            spec("interrupted", "[sig-network] Services", "should be stopped"),
            spec("skipped", "[sig-network] Networking", "should provide Internet connection"),
            spec("skipped", "[sig-network] Networking", "nobody has asked for"),
            spec("skipped", "[sig-network] Services", "needs more", message="needs 3 nodes"),
            spec("passed", "[sig-node] Pods", "should run"),
            spec("passed", "SynchronizedBeforeSuite", kind="SynchronizedBeforeSuite"),
        ]
    },
    {"SpecReports": None},
]


def test_reports_become_results() -> None:
    """Tests of sig-network have results if they ran, if the skip list names them, or if they skipped themselves."""
    assert sorted(read(REPORT, {"Internet": "no Internet"})) == [
        SpecResult("DNS", "by name should resolve", FAILED, "timed out after 5 s"),
        SpecResult("Networking", "should provide Internet connection", NOT_RUN, "no Internet"),
        SpecResult("Services", "needs more", NOT_RUN, "needs 3 nodes"),
        SpecResult("Services", "should be stopped", FAILED, ""),
        SpecResult("Services", "should serve", PASSED, ""),
    ]


def test_results_are_those_of_the_focus() -> None:
    """Tests that the focus doesn't name have no result, though the skip list names them."""
    found = read(REPORT, {"Internet": "no Internet"}, r"\[sig-network\] DNS")
    assert [each.group for each in found] == ["DNS"]


def test_results_have_a_summary() -> None:
    """A line counts tests by state, and names those that failed and the reasons of those that were not run."""
    assert summary(read(REPORT, {"Internet": "no Internet"})) == (
        "1 passed; 2 failed (by name should resolve, should be stopped); 1 not run (needs 3 nodes); "
        "1 not run (no Internet)"
    )


def test_a_verdict_counts_features() -> None:
    """The suite's verdict is its last line, and the names of features that fail."""
    rows = ["ClusterIP                       pass  2  38", "changes elsewhere               FAIL  4  1"]
    counts = "1 of 2 features pass, 39 connections"
    assert verdict("\n".join([*rows, counts, "", "a counterexample"])) == f"{counts}; changes elsewhere fails"
    assert verdict("Error: no lab") == "no result"


def test_an_account_is_told_in_words() -> None:
    """A summary has the lost connections of all, and the long connections that ended if there are any."""
    tries = (Try(1.0, 0.1, True, ""), Try(1.1, 0.1, True, "ECONNRESET"), Try(1.2, 0.1, False, ""))
    account = Account("a", (Step("one", 1.0, 2.0),), tries)
    assert fate(account) == "1 of 2 connections lost (1 ECONNRESET)"
    assert fate(account._replace(tries=tries[:1])) == "0 of 1 connections lost"
    broken = account._replace(tries=(*tries, Try(1.3, 0.1, False, "EPIPE")))
    assert fate(broken) == "1 of 2 connections lost (1 ECONNRESET), 1 kept ones ended"


def test_every_skip_has_a_reason() -> None:
    """The list of skipped tests has a reason for each."""
    assert all(skips("1.32.13").values())


def test_tests_of_newer_apis_are_skipped() -> None:
    """Tests that are newer than the cluster don't ask for APIs that it lacks."""
    assert skips("1.32.13") == skips("1.33.0") | {"ServiceCIDR and IPAddress API": "is of Kubernetes 1.33"}
