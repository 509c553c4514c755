"""A cluster of three nodes with a fault each, as a reader sees it by `kubectl nftproxy`.

The pod on node-2 doesn't answer node-1, the agent of node-2 is stopped, and the token of node-3's agent is revoked.
The reader has the rights of `nftproxy manifests --reader`, and a kubeconfig whose current context doesn't work.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nftproxy.model.annotations import PREFIX
from tests.support import objects
from tests.support.processes import CHECKOUT
from tests.support.waiting import wait_until
from tools.kubernetes.cluster import Manifest, RealCluster
from tools.kubernetes.control_plane import PATIENCE
from tools.kubernetes.deployment import KUBE_SYSTEM, ROLLOUT, agent_of
from tools.kubernetes.images import AGNHOST_IMAGE

NAMESPACE = objects.NAMESPACE
WEB = "10.96.0.11"
IN_SHOP = ("--namespace", NAMESPACE)
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
REVOKE = f"""
import ctypes, pathlib, sys
folder = pathlib.Path("{ACCOUNT}")
files = {{each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}}
assert ctypes.CDLL(None).mount(b"none", bytes(folder), b"tmpfs", 0, None) == 0
for name, content in (files | {{"token": sys.stdin.buffer.read()}}).items():
    (folder / name).write_bytes(content)
"""
"""Gives a pod another token, which the kubelet doesn't replace."""


class Look(NamedTuple):
    """A command after `kubectl nftproxy`, its exit status, and regular expressions for lines that it must print."""

    command: str
    status: int
    lines: tuple[str, ...]


BEFORE = (
    Look("status", 0, ("3 nodes: 3 well",)),
    Look("explain svc/web", 0, ("all 3 nodes:", r"      50\.0 % each: \S+ shop/web-2, \S+ shop/web-3")),
    Look("doctor", 0, ("3 nodes: 3 without either",)),
)
"""The looks at the cluster without faults."""
STOPPED = r"no answer from node-2: NFT023: the agent .* doesn't answer within 3 s: it is stopped.*"
OLD = r"caveat: node-3: NFT509: this may be out of date: .*401 Unauthorized.*"
AFTER = (
    Look(
        "status",
        1,
        (
            "3 nodes: 1 well, 1 out of touch, 1 doesn't answer",
            r"node-2   NoAnswer +the agent .* doesn't answer within 3 s: it is stopped.*",
            r"node-3   OutOfTouch +NFT509: .*401 Unauthorized.*",
        ),
    ),
    Look("status --node node-1", 0, ("1 node: 1 well",)),
    Look(
        "status -l kubernetes.io/hostname=node-3 -o yaml", 3, ("summary: '1 node: 1 out of touch'", "  OutOfTouch: 1")
    ),
    Look(
        "explain svc/web",
        1,
        (
            "svc/shop/web, on 2 nodes, which give 2 different answers",
            r"      none: \S+ shop/web-2: left out, as it doesn't answer this node, .*",
            "node-3:",
            STOPPED,
        ),
    ),
    Look("list silent", 1, (r"web +80/TCP +\S+:8080 +no +web-2 +node-1", STOPPED, OLD)),
    Look("list conflicts", 1, (r"mail +<none> +203\.0\.113\.1:80/TCP +shop/api +node-1,node-3", STOPPED, OLD)),
    Look("list quarantined -A", 1, (r"shop +ftp +all +node-1,node-3 +its addresses and ports .*", STOPPED, OLD)),
    Look("top -n shop", 1, (r"shop/web +80/TCP +\S+:8080 +\d+ +\d+", STOPPED, OLD)),
    Look("diff --live cluster.yaml", 1, (r"delete element ip nftproxy silent .*", STOPPED)),
    Look(
        "doctor",
        1,
        (
            "3 nodes: 1 with errors, 1 with warnings, 1 without either",
            "error NFT503: .*, on node-3",
            "warning NFT023: .*, on node-2",
            "warning NFT509: .*, on node-3",
        ),
    ),
)
"""The looks at the cluster with a fault on each node."""


class Reader:
    """A person with the rights of a reader, beside the cluster."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self._directory = cluster.directory
        command = [sys.executable, "-m", "nftproxy", "manifests", "--reader"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=CHECKOUT)
        cluster.kubectl("apply", "--filename=-", text=done.stdout)
        token = cluster.kubectl(KUBE_SYSTEM, "create", "token", "nftproxy-reader").strip()
        self._kubeconfig = self._directory / "reader.kubeconfig"
        self._kubeconfig.write_text(cluster.control.kubeconfig_with(token, NAMESPACE, current="none"))

    def look(self, wanted: Look) -> str:
        """Run kubectl's plugin, print its output, and return what isn't as wanted, "" if all is."""
        given = [*wanted.command.split(), "--kubeconfig", str(self._kubeconfig), "--context", "lab"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        process = self._cluster.fabric.popen(
            [self._cluster.binaries.path("kubectl"), "nftproxy", *given],
            env=os.environ | {"PATH": path},
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output = str(process.communicate()[0])
        lacks = [each for each in wanted.lines if not re.search(f"^{each}$", output, re.MULTILINE)]
        wrong = [f"without {each!r}" for each in lacks]
        wrong += [f"exit status {process.returncode}"] if process.returncode != wanted.status else []
        sys.stdout.write(f"$ kubectl nftproxy {wanted.command}\n{output}\n")
        return ", ".join(wrong)


def glances(cluster: RealCluster) -> Iterator[tuple[str, str]]:
    """Yield each command that prints something else than it should, and the difference.

    Args:
        cluster: of three nodes, with nftproxy on each.
    """
    _outlast_probes(cluster)
    _create(cluster)
    reader = Reader(cluster)
    yield from ((each.command, wrong) for each in BEFORE if (wrong := reader.look(each)))
    services = cluster.kubectl("get", "services,endpointslices", "--all-namespaces", "--output=json")
    (cluster.directory / "cluster.yaml").write_text(services)
    _silence(cluster)
    os.kill(_process(cluster, "node-2"), signal.SIGSTOP)
    _revoke(cluster)
    yield from ((each.command, wrong) for each in AFTER if (wrong := reader.look(each)))


def _outlast_probes(cluster: RealCluster) -> None:
    """Let kubelets leave a stopped agent alone, which its liveness probe would end after a minute."""
    removal = '[{"op": "remove", "path": "/spec/template/spec/containers/0/livenessProbe"}]'
    cluster.kubectl(KUBE_SYSTEM, "patch", "daemonset", "nftproxy", "--type=json", f"--patch={removal}")
    cluster.kubectl(KUBE_SYSTEM, "rollout", "status", "daemonset/nftproxy", ROLLOUT)


def _create(cluster: RealCluster) -> None:
    """Create Service web with pods on node-2 and node-3, a conflict, and a Service in quarantine."""
    shared = {"externalIPs": ["203.0.113.1"]}
    cluster.apply(
        objects.api_object("Namespace", NAMESPACE),
        *(_pod(f"web-{number}", f"node-{number}") for number in (2, 3)),
        _pod("client", "node-1"),
        objects.service(
            "web",
            {"clusterIP": WEB, "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
            metadata={"annotations": {f"{PREFIX}failover": "silent"}},
        ),
        objects.too_large("ftp"),
        objects.service("api", shared, ports=["80"]),
    )
    cluster.apply(objects.service("mail", shared, ports=["80"]))
    cluster.kubectl("wait", "--for=condition=Ready", "pod", "--all", *IN_SHOP, ROLLOUT)


def _pod(name: str, node: str) -> Manifest:
    container = {"name": "web", "image": AGNHOST_IMAGE, "args": ["netexec", "--http-port=8080"]}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1}
    return objects.api_object("Pod", name, NAMESPACE, {"app": name.partition("-")[0]}) | {"spec": spec}


def _silence(cluster: RealCluster) -> None:
    """Take node-2's routes to node-1, wait until node-1's agent has noted it, and keep a connection of a pod there."""
    place = cluster.node("node-1").place
    for each in (place.pods[0], f"{place.address}/32"):
        cluster.node("node-2").namespace.ip(f"route replace blackhole {each}")
    asking = f"for _ in 1 2 3 4 5 6 7 8; do timeout 2 curl --silent {WEB} >/dev/null & done; wait"
    status = ("exec", agent_of(cluster, "node-1"), KUBE_SYSTEM, "--", "nftproxy", "list", "silent", "-A", "-o", "name")

    def is_silent() -> bool:
        cluster.kubectl("exec", "client", *IN_SHOP, "--", "sh", "-c", asking)
        return bool(cluster.kubectl(*status))

    wait_until(is_silent, partial(cluster.kubectl, *status), patience=PATIENCE)
    kept = f"exec 3<>/dev/tcp/{WEB}/80 && echo connected && sleep 3600"
    command = [cluster.binaries.path("kubectl"), f"--kubeconfig={cluster.control.kubeconfig}", "exec", "client"]
    held = cluster.fabric.popen([*command, *IN_SHOP, "--", "bash", "-c", kept], stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None
    assert held.stdout.readline() == "connected\n"


def _revoke(cluster: RealCluster) -> None:
    """Give node-3's agent a token that has been revoked, restart the API server, and wait until the agent says so."""
    secret = ("secret", "revoked", KUBE_SYSTEM)
    cluster.kubectl("create", "secret", "generic", *secret[1:])
    bound = ("--bound-object-kind=Secret", "--bound-object-name=revoked")
    token = cluster.kubectl(KUBE_SYSTEM, "create", "token", "nftproxy", *bound).strip()
    cluster.kubectl("delete", *secret)
    inside = ["nsenter", f"--target={_process(cluster, 'node-3')}", "--mount", "/venv/bin/python", "-c", REVOKE]
    subprocess.run(inside, input=token, check=True, text=True)
    cluster.control.stop("kube-apiserver")
    cluster.control.start_api_server()
    asked = ("exec", agent_of(cluster, "node-3"), KUBE_SYSTEM, "--", "sh", "-c", "nftproxy status || echo status $?")
    wait_until(lambda: "status 3" in cluster.kubectl(*asked), partial(cluster.kubectl, *asked), patience=PATIENCE)


def _process(cluster: RealCluster, node: str) -> int:
    """The process of a node's agent."""
    (process,) = cluster.processes(agent_of(cluster, node), "kube-system")
    return process
