"""The container image, started by containerd and runc exactly as examples/deploy/daemonset.yaml says.

`tox run -e image` builds it (tools/image).  Nothing here stands in for a part of it: the runtime is asked as a kubelet
asks it, and the node's network is a namespace of the test's own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nftproxy_conformance.lab.namespace import Namespace

from nftproxy import __version__
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.rules.transaction import delete_transaction, join
from tests.conftest import CHECKOUT
from tests.support.waiting import wait_until
from tools.image.build import ARCHIVE, NATIVE, bill_of
from tools.image.containerd import Containerd
from tools.image.kubelet import Container, Pod

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not ARCHIVE.exists(), reason="there is no image (python -m tools.image builds it, as root)"
)

MANIFEST = CHECKOUT / "examples" / "deploy" / "daemonset.yaml"
OBJECTS: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}
TEMPLATE = OBJECTS["DaemonSet"]["spec"]["template"]["spec"]
(SYSCTLS,) = TEMPLATE["initContainers"]
(PROXY,) = TEMPLATE["containers"]
CLUSTER = CHECKOUT / "examples" / "cluster-ip"
INSIDE = "/examples"
FOLLOW = [
    "run", f"--source={INSIDE}/manifests", f"--config={INSIDE}/config.yaml", "--hostname-override=node-a",
]  # fmt: skip

LARGEST = {"amd64": 130_000_000, "arm64": 132_000_000}
"""Bytes that the image may take unpacked, by architecture."""


@pytest.fixture(scope="module")
def node() -> Iterator[Namespace]:
    """A node's network, which has the address of its Node and forwards: else the agent would warn, sooner or later."""
    with Namespace("node") as made:
        made.ip("link set lo up", "link add uplink type veth peer name far", "link set uplink up", "link set far up")
        made.ip("address add 192.168.0.2/24 dev uplink", "address add fd00:c0a8::2/64 dev uplink nodad")
        made.ip("route add default dev uplink")
        made.sysctl({"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"})
        yield made


@pytest.fixture(scope="module")
def engine(node: Namespace) -> Iterator[Containerd]:
    """A node's container runtime, which has the image."""
    with Containerd(node) as made:
        yield made


@pytest.fixture
def pod(engine: Containerd, node: Namespace, request: pytest.FixtureRequest) -> Iterator[Pod]:
    """The DaemonSet's pod on a node without rules, as yet without a container."""
    node.call(Kernel().apply, join(map(delete_transaction, Family)))
    made = Pod(engine, TEMPLATE, f"nftproxy-{request.node.name[5:30].replace('_', '-')}")
    yield made
    made.stop()


@pytest.fixture
def proxy(pod: Pod, tmp_path: Path) -> Container:
    """The proxy's container, which has loaded the rules of an example."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)  # as an emptyDir is
    mounts = {INSIDE: CLUSTER, "/tmp": tmp_path, "/run/nftproxy": tmp_path / "run"}
    started = pod.start(PROXY, args=FOLLOW, mounts=mounts)
    started.await_line("loaded the rules: ")
    return started


def test_the_proxy_writes_rules_with_the_rights_that_it_is_given(node: Namespace, proxy: Container) -> None:
    """Not root, with one capability, a read-only root and the default seccomp profile, it loads rules, which stay."""
    status = proxy.run("cat", "/proc/1/status")[1]
    facts = dict(line.split(":\t", 1) for line in status.splitlines())
    assert facts["Uid"].split() == facts["Gid"].split() == [str(PROXY["securityContext"]["runAsUser"])] * 4
    assert {facts[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {f"{1 << 12:016x}"}  # CAP_NET_ADMIN
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"  # by a filter
    assert "Read-only file system" in proxy.run("touch", "/etc/x")[1]
    assert proxy.stop(10) == 0
    assert node.call(Kernel().read_back, Family.IPV4) is not None


def test_the_agent_answers_in_its_pod(proxy: Container) -> None:
    """`kubectl exec` without any option asks the agent, as the same user, without a right to the kernel."""
    status, text = proxy.run("nftproxy", "status")
    assert status == 0, text
    assert text.startswith("Agent:            healthy; node node-a")
    assert "svc/shop/web" in proxy.run("nftproxy", "list", "services", "-n", "shop", "-o", "name")[1]


def test_the_agent_starts_anew_in_its_container(pod: Pod, tmp_path: Path) -> None:
    """After a change of the configuration it has its right to the kernel still, and is healthy by `/livez`."""
    shutil.copytree(CLUSTER, tmp_path / "cluster")
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    mounts = {INSIDE: tmp_path / "cluster", "/tmp": tmp_path, "/run/nftproxy": tmp_path / "run"}
    proxy = pod.start(PROXY, args=FOLLOW, mounts=mounts)
    proxy.await_line("loaded the rules: ")
    with (tmp_path / "cluster" / "config.yaml").open("a") as config:
        config.write("nftables: {syncPeriod: 20s}\n")
    wait_until(lambda: proxy.log().count("loaded the rules: ") == 2, proxy.log)
    asked = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:10256/livez').status)"
    assert proxy.run("/venv/bin/python", "-c", asked) == (0, "200\n")
    assert proxy.run("nftproxy", "status")[0] == 0


def test_top_has_names_in_its_pod(node: Namespace, proxy: Container) -> None:
    """`kubectl exec` without any option shows a connection of the node, which the agent reads from conntrack."""
    with node.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        client.connect_ex(("10.96.0.10", 80))
        status, text = proxy.run("nftproxy", "top")
    assert status == 0, text
    header, row = (line.split() for line in text.splitlines())
    assert header == ["SERVICE", "PORT", "ENDPOINT", "CONNECTIONS", "UNANSWERED"]
    assert (*row[:2], *row[3:]) == ("shop/web", "80/TCP", "1", "1")
    assert re.fullmatch(r"10\.1\.[012]\.4:8080", row[2])


def test_only_the_one_program_has_the_right(proxy: Container) -> None:
    """Other programs in the image can't change rules, for any user."""
    assert "no permission" in proxy.run("nftproxy", "cleanup")[1]
    assert proxy.run(*PROXY["command"], "cleanup") == (0, "")


def test_the_image_has_all_that_the_command_line_needs(proxy: Container) -> None:
    """In the container `render` finds its templates, and the agent finds nothing missing in kernel and library."""
    arguments = [f"{INSIDE}/manifests", "--config", f"{INSIDE}/config.yaml", "--node", "node-a"]
    assert "goto tcp-endpoints-of-3" in proxy.run("nftproxy", "render", *arguments)[1]
    said = proxy.run("nftproxy", "--version")[1]
    assert re.fullmatch(
        rf"nftproxy, version {re.escape(__version__)} \((unreleased, )?commit [0-9a-f]{{12}}(-dirty)?\)\n", said
    )
    assert "IPv6 goes by a hash" not in proxy.log()
    assert "lacks" not in proxy.log()


def test_the_init_container_sets_sysctls_and_ends(node: Namespace, pod: Pod, tmp_path: Path) -> None:
    """The privileged init container of the DaemonSet ends with success, having loaded no rules."""
    (config,) = [text for text in SYSCTLS["args"] if text.startswith("--config=")]
    args = [f"--config={INSIDE}/config.yaml" if text == config else text for text in SYSCTLS["args"]]
    assert pod.start(SYSCTLS, args=args, mounts={INSIDE: CLUSTER, "/tmp": tmp_path}).await_end() == 0
    assert node.call(Kernel().read_back, Family.IPV4) is None


def test_the_memory_limit_is_the_kernels(proxy: Container) -> None:
    """The container may have the memory that the manifest says, and uses a fraction of it."""
    files = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max")
    answers = [proxy.run("cat", file) for file in files]
    assert [int(text) for status, text in answers if status == 0] == [1 << 30]


def test_the_image_names_its_commit(tmp_path: Path) -> None:
    """The label of the revision is the commit that the program names."""
    subprocess.run(["tar", "-xf", ARCHIVE, "-C", tmp_path, "manifest.json"], check=True)
    (image,) = json.loads((tmp_path / "manifest.json").read_text())
    read = ["tar", "-xOf", ARCHIVE, image["Config"]]
    labels = json.loads(subprocess.run(read, check=True, stdout=subprocess.PIPE).stdout)["config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == __version__
    assert re.fullmatch("[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])


def test_the_image_is_small_and_says_what_is_in_it() -> None:
    """It takes no more than stated, and its bill of materials names Debian's packages and every pinned dependency."""
    assert ARCHIVE.stat().st_size <= LARGEST[NATIVE]
    bill = json.loads(bill_of(ARCHIVE).read_text())
    listed = {each["purl"].split("?")[0].replace("pkg:pypi/", "").replace("@", "==") for each in bill["components"]}
    text = (CHECKOUT / "examples" / "deploy" / "requirements.txt").read_text()
    pinned = {line.split(" ")[0] for line in text.splitlines() if "==" in line and ";" not in line}
    assert pinned <= listed
    assert [each for each in bill["components"] if each["name"] == "libnftables1"]


def test_the_image_has_no_judge(proxy: Container) -> None:
    """Neither nftproxy-conformance nor what only that needs is in it, and `nftproxy conformance` says how to get it."""
    listed = {each["name"].lower() for each in json.loads(bill_of(ARCHIVE).read_text())["components"]}
    assert listed & {"nftproxy-conformance", "aiohttp", "hypothesis", "trustme"} == set()
    status, text = proxy.run("nftproxy", "conformance")
    assert status == 1
    assert "`pip install ./conformance` installs it" in text


def test_the_pinned_packages_are_there_for_arm64(tmp_path: Path) -> None:
    """Each has a wheel for that architecture too, with a hash that is pinned.  The image is built for this
    architecture.
    """
    requirements = CHECKOUT / "examples" / "deploy" / "requirements.txt"
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 28)]
    versions = ["--python-version=3.13", "--implementation=cp", "--abi=cp313", "--abi=abi3", "--abi=none"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [*platforms, *versions, "--require-hashes", f"--requirement={requirements}", f"--dest={tmp_path}"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    assert len([*tmp_path.glob("*.whl")]) == requirements.read_text().count("==")
    assert [*tmp_path.glob("msgspec-*_aarch64.whl")]
