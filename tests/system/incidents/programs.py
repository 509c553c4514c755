"""Programs whose rules stand beside ours on many nodes, as Debian has them: ufw, dockerd, and plugins of the CNI."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nftproxy_conformance.lab import Namespace

from tests.support.debian_packages import unpacked
from tests.support.processes import kill
from tests.support.waiting import wait_until

OUR_TABLES = {"table ip nftproxy", "table ip6 nftproxy"}


@contextmanager
def no_tables_left(node: Namespace) -> Iterator[None]:
    """Delete other programs' tables at the end."""
    yield
    for title in set(node.run(["nft", "list", "tables"]).splitlines()) - OUR_TABLES:
        node.run(["nft", "delete", *title.split()])


@contextmanager
def ufw(node: Namespace, directory: Path) -> Iterator[None]:
    """`ufw enable`, with the package's rules and defaults."""
    tree, root = unpacked("ufw"), directory / "root"
    for folder in ("etc", "lib", "usr/share/ufw"):
        shutil.copytree(tree / folder, root / folder, dirs_exist_ok=True)
    for each in (*(tree / "usr/share/ufw").glob("*.*"), *(tree / "usr/share/ufw/iptables").iterdir()):  # its postinst
        shutil.copy(each, root / "etc" / "ufw")
    packages = next(tree.glob("usr/lib/python3*/dist-packages"))
    program = ["env", f"PYTHONPATH={packages}", "/usr/bin/python3", str(tree / "usr/sbin/ufw")]
    node.run([*program, f"--rootdir={root}", f"--datadir={root}", "--force", "enable"])
    yield


@contextmanager
def docker(node: Namespace, directory: Path) -> Iterator[None]:
    """dockerd, with its default bridge.  It has processes, mounts and control groups of its own.

    It drops forwarded packets only if it has turned forwarding on itself, as when a node boots.
    """
    node.sysctl({"ipv4/ip_forward": "0"})
    tree = unpacked("docker.io", "containerd", "runc", "libdevmapper1.02.1")
    path = ":".join([str(tree / "usr/sbin"), str(tree / "usr/bin"), os.environ["PATH"]])
    libraries = ":".join(str(each.parent) for each in tree.rglob("libdevmapper.so*"))
    mounts = "mount -t sysfs none /sys && mount -t cgroup2 none /sys/fs/cgroup && mount -t tmpfs none /run"
    start = f"{mounts} && exec dockerd --storage-driver=vfs --data-root={directory / 'data'}"
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    environment = os.environ | {"PATH": path, "LD_LIBRARY_PATH": libraries}
    log = directory / "docker.log"
    with log.open("w") as out:
        process = node.popen([*apart, "sh", "-c", start], env=environment, stdout=out, stderr=out)
    wait_until(lambda: process.poll() is not None or "API listen on" in log.read_text(), log.read_text)
    assert process.poll() is None, log.read_text()
    yield
    kill(process)
    node.ip("link delete docker0")


@contextmanager
def cni(node: Namespace, directory: Path) -> Iterator[None]:
    """The plugins ptp, portmap and firewall, which make a pod with a host port."""
    plugins = unpacked("containernetworking-plugins") / "usr/lib/cni"
    addresses = {"type": "host-local", "ranges": [[{"subnet": "10.1.9.0/24"}]], "dataDir": str(directory / "leases")}
    mappings = {"portMappings": [{"hostPort": 8081, "containerPort": 80, "protocol": "tcp"}]}
    chain: list[dict[str, Any]] = [
        {"type": "ptp", "ipMasq": True, "ipam": addresses},
        {"type": "portmap", "runtimeConfig": mappings},
        {"type": "firewall", "backend": "iptables"},
    ]
    with Namespace("pod") as pod:
        given = {"CNI_CONTAINERID": "pod", "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0", "CNI_PATH": str(plugins)}
        program = ["env", "CNI_COMMAND=ADD", *(f"{name}={value}" for name, value in given.items())]
        result: dict[str, Any] = {}
        for each in chain:
            asked = {"cniVersion": "0.4.0", "name": "net", **each, **({"prevResult": result} if result else {})}
            result = json.loads(node.run([*program, str(plugins / each["type"])], json.dumps(asked)))
        yield


@contextmanager
def all_three(node: Namespace, directory: Path) -> Iterator[None]:
    """A pod's rules first, then dockerd's, then ufw's."""
    with ExitStack() as stack:
        for program in (cni, docker, ufw):
            part = directory / program.__name__
            part.mkdir()
            stack.enter_context(program(node, part))
        yield
