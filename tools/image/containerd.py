"""A containerd of our own, in a network namespace: for a pod, that is the node's network."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import grpc
from nftproxy_conformance.lab.namespace import Namespace

from tests.support.waiting import wait_until
from tools.image.build import ARCHIVE
from tools.image.cri import Runtime

CONFIG = """
version = 2
root = "{directory}/root"
state = "{directory}/state"
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  # Where oom scores can't be lowered, the kubelet's values are raised to what the machine allows.
  restrict_oom_score_adj = true
  sandbox_image = "{pause}"
"""
PAUSE = "docker.io/library/pause:nftproxy"


class Containerd:
    """containerd with runc and our image, until the end of the block, when all pods have been stopped."""

    def __init__(self, node: Namespace) -> None:
        self._node = node

    def __enter__(self) -> Containerd:
        self.directory = Path(tempfile.mkdtemp(prefix="nftproxy-containerd-"))
        configuration = self.directory / "config.toml"
        configuration.write_text(CONFIG.format(directory=self.directory, pause=PAUSE))
        self._log = (self.directory / "log").open("wb")
        self._process = self._node.popen(["containerd", "--config", str(configuration)], stderr=self._log)
        self.runtime = Runtime(self.directory / "containerd.sock")
        try:
            wait_until(self._answers, self._output, pause=0.1)
            self._import_images()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.close()
        self._process.terminate()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._output()
        with suppress(grpc.RpcError):
            self.runtime.call("Version", seconds=1.0)
            return True
        return False

    def _output(self) -> str:
        return (self.directory / "log").read_text()

    def _import_images(self) -> None:
        pause = self.directory / "pause.tar"
        write_pause(pause)
        address = ["--address", str(self.directory / "containerd.sock"), "--namespace", "k8s.io"]
        for archive in (ARCHIVE, pause):
            subprocess.run(["ctr", *address, "images", "import", str(archive)], check=True, stdout=subprocess.DEVNULL)


def write_pause(path: Path) -> None:
    """Write an archive of the image whose container holds a pod's namespaces: ours, with a program that doesn't end."""
    with tarfile.open(ARCHIVE) as image, tarfile.open(path, "w") as made:
        (manifest,) = json.loads(_read(image, "manifest.json"))
        config = json.loads(_read(image, manifest["Config"]))
        config["config"]["Entrypoint"] = ["/usr/bin/sleep", "infinity"]
        manifest |= {"Config": "config.json", "RepoTags": [PAUSE]}
        contents = {"config.json": config, "manifest.json": [manifest]}
        files = {name: json.dumps(value).encode() for name, value in contents.items()}
        for name, data in (files | {layer: _read(image, layer) for layer in manifest["Layers"]}).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, f"{name} is no file"
    return file.read()
