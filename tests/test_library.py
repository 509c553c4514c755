"""nftproxy as a library: the output of the command line, from objects in memory, and the examples that use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nftproxy_conformance.apiserver import ApiServer, documents

import nftproxy
from nftproxy.explanation.answer import Fate
from nftproxy.model.addresses import Family
from nftproxy.model.errors import BadInput
from tests.support import objects
from tests.support.command import nftproxy as command

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES = CHECKOUT / "examples"
CONFLICTS = EXAMPLES / "conflicts"
CONFIG = {"clusterCIDR": "10.1.0.0/16,fd00:1::/48"}
SHOP = [
    objects.service("web", vips=["10.96.0.10"], ports=["http:80"]),
    objects.endpoint_slice("web-1", "10.1.0.4@node-a", service="web", ports=["http:8080"]),
]


class Client:
    """An object as clients of Kubernetes have it."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw


def in_memory(example: Path) -> list[dict[str, Any]]:
    """The objects of an example, decoded."""
    return list(documents(example / "manifests"))


def test_rules_are_those_of_the_command_line() -> None:
    """The same objects and configuration give the text that `nftproxy render` prints, from files and from memory."""
    (config,) = documents(CONFLICTS / "config.yaml")
    options: list[str | Path] = ["--node", "node-a", "--config", CONFLICTS / "config.yaml", "--ipv6-affinity", "map"]
    printed = command("render", CONFLICTS / "manifests", *options).out
    assert nftproxy.render(nftproxy.load(CONFLICTS / "manifests"), "node-a", config).text == printed
    assert nftproxy.render(in_memory(CONFLICTS), "node-a", config).text == printed


def test_a_list_of_objects_is_its_objects() -> None:
    """A List, as `kubectl get -o json` prints it, and the objects of a client are the objects in them."""
    expected = nftproxy.render(SHOP, "node-a").text
    assert "10.96.0.10" in expected
    assert nftproxy.render([{"apiVersion": "v1", "kind": "List", "items": SHOP}], "node-a").text == expected
    assert nftproxy.render([Client(each) for each in SHOP], "node-a").text == expected


def test_families_are_those_asked_for() -> None:
    """Rules are made for the families asked for, and for no other."""
    text = nftproxy.render(SHOP, "node-a", families=[Family.IPV6]).text
    assert "table ip6 nftproxy" in text
    assert "table ip nftproxy" not in text


def test_conflicts_name_who_lost_what_to_whom() -> None:
    """A Service that doesn't get its address is a conflict, with the address and its owner."""
    rendered = nftproxy.render(nftproxy.load(CONFLICTS / "manifests"), "node-a")
    found = {(each.service, each.what): each.why for each in rendered.conflicts}
    assert found["staging/web:http", "203.0.113.9:80/TCP"] == "it belongs to Service shop/web, which takes precedence"
    assert nftproxy.render(SHOP, "node-a").conflicts == ()


def test_what_is_wrong_with_an_object_is_a_problem() -> None:
    """A bad object costs itself: it is reported by its name or place, and the other objects are used."""
    bad = objects.service("bad", vips=["10.96.0.300"], ports=["80"])
    rendered = nftproxy.render([*SHOP, bad, {"kind": "Service"}], "node-a")
    assert [(each.object, each.field) for each in rendered.problems] == [
        ("Service shop/bad", "spec.clusterIPs[0]"),
        ("objects[3]", "apiVersion"),
    ]
    assert "10.96.0.10" in rendered.text


def test_excessive_services_are_named() -> None:
    """A Service over a limit is quarantined, with the reason."""
    ranges = [f"10.{number >> 8}.{number & 255}.0/24" for number in range(1001)]
    spec = {"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}
    huge = objects.service("huge", spec, vips=["10.96.0.20"], ports=["80"])
    assert nftproxy.render([*SHOP, huge], "node-a").quarantined == {
        "shop/huge": "it has 1001 source ranges, and 1000 are allowed"
    }


def test_a_wrong_configuration_is_bad_input() -> None:
    """A configuration that can't be used raises, with the field at fault."""
    with pytest.raises(BadInput, match="clusterCIDR"):
        nftproxy.render(SHOP, "node-a", {"clusterCIDR": "10.1.0.0"})


def test_explanations_are_those_of_the_command_line(tmp_path: Path) -> None:
    """`explain` answers as the command does, with types.  As text it is the command's output."""
    file = tmp_path / "shop.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": SHOP}))
    explanation = nftproxy.explain(SHOP, "node-a", "10.96.0.10:80", "10.1.0.7", CONFIG)
    (config := tmp_path / "config.json").write_text(json.dumps(kube_proxy_configuration()))
    options: list[str | Path] = ["--node", "node-a", "--config", config, "--ipv6-affinity", "map"]
    assert f"{explanation}\n" == command("explain", "10.96.0.10:80", file, *options, "--from", "10.1.0.7").out
    (case,) = explanation.places[0].cases
    assert case.fate is Fate.ENDPOINT
    assert [(each.address, each.port, each.share) for each in case.endpoints] == [("10.1.0.4", 8080, 100.0)]


def kube_proxy_configuration() -> dict[str, Any]:
    """The configuration as a file has it."""
    return {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", **CONFIG}


# ---- the examples ---------------------------------------------------------------------------------------------------


def run(script: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an example as its users do."""
    command = [sys.executable, str(EXAMPLES / "python" / script), *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)


def test_the_pipeline_fails_on_conflicts() -> None:
    """ci_conflicts.py fails where Services are in each other's way, names them, and passes where they aren't."""
    done = run("ci_conflicts.py", "node-a", CONFLICTS / "manifests")
    assert done.returncode == 1, done.stderr
    assert "conflict: staging/web:http does not get 203.0.113.9:80/TCP: it belongs to Service shop/web" in done.stdout
    passed = run("ci_conflicts.py", "node-a", EXAMPLES / "cluster-ip" / "manifests")
    assert (passed.returncode, passed.stdout) == (0, "no conflicts\n"), passed.stderr


@pytest.mark.parametrize("script", ["ci_conflicts.py", "render_live.py"])
def test_a_program_without_arguments_says_which_it_needs(script: str) -> None:
    """The examples say how they are used, instead of a stack trace, and fail."""
    done = run(script)
    assert done.returncode == 1
    assert f"python {script} NODE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_live_cluster_is_rendered_through_kr8s(tmp_path: Path) -> None:
    """render_live.py prints the rules and the explanation of an API server's objects, as from the same manifests."""
    with ApiServer(tls=True, authenticate=True) as server:
        for each in in_memory(CONFLICTS):
            server.put(each)
        server.write_kubeconfig(tmp_path / "kubeconfig")
        live = run("render_live.py", "node-a", KUBECONFIG=str(tmp_path / "kubeconfig"))
        asked = run("render_live.py", "node-a", "203.0.113.9:80", "outside", KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert live.returncode == 0, live.stderr
    offline = nftproxy.render(in_memory(CONFLICTS), "node-a", {"clusterCIDR": "10.1.0.0/16"})
    assert live.stdout == offline.text
    assert [line for line in live.stderr.splitlines() if line.startswith("conflict: ")]
    assert "external IP of Service shop/web:http" in asked.stdout, asked.stderr
