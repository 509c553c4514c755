"""The artefacts in dist/, which `tox run -e release` makes, on a machine that has nothing but Debian 13.

The Debian package is installed with apt into an empty tree, and its program follows an API server there, started as the
unit starts it, except for the sandbox.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab, Origin, endpoint, obstacle

from nftproxy import __version__
from nftproxy.build import build_of
from tests.conftest import CHECKOUT
from tests.support.cluster import IP
from tests.support.waiting import wait_until
from tests.system.e2e.objects import node, service, service_cidr, slice_of
from tools.image.build import CERTIFICATES
from tools.image.wheels import MACHINES
from tools.release.deb_package import COMPLETIONS

DIST = CHECKOUT / "dist"
IMAGES = {name: DIST / f"nftproxy-image-{__version__}-{name}.tar" for name in MACHINES}
DEBIAN = CHECKOUT / "tools" / "debian"
UNIT = Path("usr/lib/systemd/system/nftproxy.service")
KUBECONFIG = Path("etc/nftproxy/kubeconfig")

IN_TREE = """
mount --bind "$0" "$0"
for dir in /dev /proc /sys; do mount --rbind "$dir" "$0$dir"; done
exec chroot "$0" env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"
"""
"""Runs a command in a tree, with mounts that only the command sees."""

pytestmark = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
    pytest.mark.skipif(not (DIST / "SHA256SUMS").exists(), reason="there are no artefacts (tox run -e release)"),
    pytest.mark.timeout(1800),
]


def in_tree(tree: Path, *command: str) -> list[str]:
    """The command line that runs a command in a tree."""
    return ["unshare", "--mount", "bash", "-euc", IN_TREE, str(tree), *command]


def run(tree: Path, *command: str) -> str:
    """The output of a command in a tree."""
    return subprocess.run(in_tree(tree, *command), check=True, stdout=subprocess.PIPE, text=True).stdout


def built_version() -> str:
    """The version with the commit of HEAD, of which the artefacts are."""
    command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%H%n%s"]
    return build_of(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout).text


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """An empty Debian 13 in which the package was installed."""
    architecture = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout
    (package,) = DIST.glob(f"nftproxy_{__version__}-*_{architecture.strip()}.deb")
    with tempfile.TemporaryDirectory(prefix="nftproxy-tree-") as name:
        made = Path(name) / "tree"
        subprocess.run([DEBIAN / "mmdebstrap.sh", "--quiet", "--variant=apt", "trixie", made], check=True)
        shutil.copy(package, made / "nftproxy.deb")
        shutil.copy("/etc/resolv.conf", made / "etc")
        install = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--yes", "--no-install-recommends"]
        run(made, "apt-get", "update", "--quiet")
        run(made, *install, "/nftproxy.deb")
        yield made


def test_the_packages_have_the_plugin_the_manual_and_completion() -> None:
    """Wheel and Debian package have kubectl's plugin, and the package also the manual page and scripts for shells."""
    with zipfile.ZipFile(DIST / f"nftproxy-{__version__}-py3-none-any.whl") as wheel:
        (entries,) = (name for name in wheel.namelist() if name.endswith("dist-info/entry_points.txt"))
        assert "kubectl-nftproxy = nftproxy.commands.cli:plugin" in wheel.read(entries).decode()
    wanted = {
        "/usr/bin/kubectl-nftproxy",
        "/usr/share/man/man8/nftproxy.8.gz",
        "/usr/share/man/man8/kubectl-nftproxy.8.gz",
        *(f"/{place}" for place in COMPLETIONS.values()),
    }
    for package in DIST.glob("*.deb"):
        listed = subprocess.run(["dpkg-deb", "--contents", package], check=True, capture_output=True, text=True).stdout
        assert wanted <= {line.split()[5].removeprefix(".") for line in listed.splitlines()}


def test_checksums_are_of_the_files() -> None:
    """SHA256SUMS has each file, and each bill of materials is beside its artefact."""
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=DIST, check=True)
    listed = {line.split()[1] for line in (DIST / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in DIST.iterdir()} - {"SHA256SUMS"}
    artefacts = {name for name in listed if not name.endswith(".cdx.json")}
    assert artefacts - {path.name for path in IMAGES.values()} == {
        f"nftproxy-{__version__}-py3-none-any.whl",
        f"nftproxy-{__version__}.tar.gz",
        f"nftproxy_conformance-{__version__}-py3-none-any.whl",
        f"nftproxy-{__version__}.tgz",
        f"nftproxy-kustomize-{__version__}.tar.gz",
        *(f"nftproxy_{__version__}-1_{architecture}.deb" for architecture in MACHINES),
    }
    assert listed == artefacts | {f"{name}.cdx.json" for name in artefacts}


def test_each_bill_names_contents() -> None:
    """Each bill is CycloneDX, and each component has a package URL."""
    for path in DIST.glob("*.cdx.json"):
        bill = json.loads(path.read_text())
        assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
        assert bill["components"]
        assert all(each["purl"].startswith("pkg:") for each in bill["components"])


@pytest.mark.parametrize("architecture", MACHINES)
def test_the_image_renders_an_example(architecture: str, tmp_path: Path) -> None:
    """The program in each image, run by qemu if need be, makes the rules that the example expects."""
    archive = IMAGES[architecture]
    if not archive.exists():
        pytest.skip("made with --no-image")
    subprocess.run([DEBIAN / "emulate.sh", architecture], check=True)
    tree, example = tmp_path / "tree", "examples/cluster-ip"
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    (image,) = json.loads((tmp_path / "manifest.json").read_text())
    (layer,) = image["Layers"]
    assert json.loads((tmp_path / image["Config"]).read_text())["architecture"] == architecture
    shutil.copytree(CHECKOUT / example, tree / example)
    subprocess.run(["tar", "-xf", tmp_path / layer, "-C", tree], check=True)
    command = ["render", f"{example}/manifests", "--config", f"{example}/config.yaml", "--node", "node-a"]
    here = subprocess.run([sys.executable, "-m", "nftproxy", *command], check=True, stdout=subprocess.PIPE, text=True)
    assert run(tree, "/venv/bin/nftproxy", *command) == here.stdout


def test_the_package_brings_all_that_the_program_needs(tree: Path) -> None:
    """The program has its version and renders an example, and what it imports is compiled."""
    assert run(tree, "nftproxy", "--version") == f"nftproxy, version {built_version()}\n"
    shutil.copytree(CHECKOUT / "examples" / "cluster-ip", tree / "example")
    rules = run(
        tree, "nftproxy", "render", "/example/manifests", "--config", "/example/config.yaml", "--node", "node-a"
    )
    assert "goto tcp-endpoints-of-3" in rules
    assert list((tree / "usr/lib/nftproxy/nftproxy/__pycache__").glob("pipeline.*.pyc"))


def test_the_wheel_is_installed_by_the_page(tree: Path) -> None:
    """The commands of docs/releases.md install the wheel, and its `manifests` prints what this checkout's prints."""
    (wheel,) = DIST.glob(f"nftproxy-{__version__}-*.whl")
    shutil.copy(wheel, tree)
    if CERTIFICATES.exists():  # pip has to trust a certificate that Debian doesn't know
        shutil.copy(CERTIFICATES, tree)
        (tree / "etc/pip.conf").write_text(f"[global]\ncert = /{CERTIFICATES.name}\n")
    _, _, section = (CHECKOUT / "docs" / "releases.md").read_text().partition("The wheel needs")
    commands = re.findall("^    (.+)$", section.replace("VERSION", __version__), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        unasked = command.replace("apt-get install", "apt-get install --yes")
        run(tree, "env", "DEBIAN_FRONTEND=noninteractive", "bash", "-euc", unasked)
    asked = ["manifests", "--image=nftproxy", "--api-server=https://10.0.0.1:6443", "--cluster-cidr=10.244.0.0/16"]
    here = subprocess.run([sys.executable, "-m", "nftproxy", *asked], check=True, stdout=subprocess.PIPE, text=True)
    assert run(tree, "/opt/nftproxy/bin/nftproxy", *asked) == here.stdout


def test_the_unit_is_there_and_not_started(tree: Path) -> None:
    """The unit runs the installed program, and waits for an administrator to enable it."""
    commands = re.findall(r"^ExecStart\w*=\+?(\S+)", (tree / UNIT).read_text(), re.MULTILINE)
    assert commands == ["/usr/sbin/nftproxy"] * 2
    assert not list((tree / "etc/systemd/system").rglob("nftproxy.service"))


def test_the_agent_of_the_package_serves_a_cluster(tree: Path) -> None:
    """Started as the unit says, it follows the API server, connections arrive, and `nftproxy status` says healthy."""
    (start,) = re.findall(r"^ExecStart=(.*)$", (tree / UNIT).read_text(), re.MULTILINE)
    with (
        Lab() as lab,
        ApiServer(hosts=["127.0.0.1"], tls=True, authenticate=True, make_socket=lab.node.socket) as server,
    ):
        server.put(node("node-a", IP.node), service_cidr("kubernetes", "10.96.0.0/16"))
        server.put(service(), slice_of(f"{IP.away}@node-b"))
        (tree / KUBECONFIG).parent.mkdir(parents=True, exist_ok=True)
        server.write_kubeconfig(tree / KUBECONFIG)
        log = tree / "log"
        with log.open("w") as output:
            agent = lab.node.popen(in_tree(tree, *start.split(), "--hostname-override=node-a"), stderr=output)
        way = (Origin.POD, IP.vip, 80)
        wait_until(lambda: lab.connect(*way) == endpoint(IP.away, 8080) or agent.poll() is not None, log.read_text)
        asked = lab.node.popen(in_tree(tree, "nftproxy", "status"), stdout=subprocess.PIPE, text=True)
        assert asked.communicate()[0].startswith("Agent:            healthy; node node-a"), log.read_text()
        agent.terminate()
        assert agent.wait(60) == 0


def test_the_chart_unpacks_to_a_folder_of_its_name(tmp_path: Path) -> None:
    """The archive has the form in which Helm packs charts."""
    subprocess.run(["tar", "-xf", DIST / f"nftproxy-{__version__}.tgz", "-C", tmp_path], check=True)
    found = sorted(path.name for path in (tmp_path / "nftproxy").iterdir())
    assert found == ["Chart.yaml", "alerts.yaml", "templates", "values.schema.json", "values.yaml"]
