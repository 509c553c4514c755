"""Makes all artefacts of a commit in a folder, each with its bill of materials, and the checksums of all.

The same commit makes the same bytes.  Each file within an artefact has the time of the commit, archives have their
members in order, and what is fetched is pinned by hashes.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.image.build import bill_of
from tools.image.materials import bill, python_component
from tools.image.wheels import MACHINES
from tools.release.artifact_source import ArtifactSource
from tools.release.chart import chart
from tools.release.deb_package import deb
from tools.release.kustomize import kustomize

SUMS = "SHA256SUMS"


def make_artifacts(source: ArtifactSource, version: str, target: Path) -> None:
    """Make the artefacts in an empty folder, all but the image.

    Raises:
        subprocess.CalledProcessError: a program fails.
    """
    wheel = _build(source, source.directory, "--wheel", target)
    _build(source, source.directory, "--sdist", target)
    _build(source, source.directory / "conformance", "--wheel", target)
    (target / f"nftproxy-{version}.tgz").write_bytes(archived(chart(version), "nftproxy", source.epoch))
    kustomized = archived(kustomize(version), "nftproxy-kustomize", source.epoch)
    (target / f"nftproxy-kustomize-{version}.tar.gz").write_bytes(kustomized)
    for architecture in MACHINES:
        deb(source, version, wheel, architecture, target)


def describe(source: ArtifactSource, version: str, target: Path) -> None:
    """Write a bill of materials beside each file: the pinned packages, or for manifests the image that they run."""
    requirements = (source.directory / "examples/deploy/requirements.txt").read_text()
    project = tomllib.loads((source.directory / "conformance/pyproject.toml").read_text())["project"]
    image = {"type": "container", "name": "nftproxy", "version": version, "purl": f"pkg:docker/nftproxy@{version}"}
    contents: dict[str, list[Mapping[str, object]]] = {
        "nftproxy_conformance-*": [needed_component(each) for each in project["dependencies"]],
        "*.tgz": [image],
        "nftproxy-kustomize-*": [image],
        "*": list(components(requirements)),
    }
    for path in sorted(target.iterdir()):
        inside = next(found for pattern, found in contents.items() if path.match(pattern))
        digest = {"alg": "SHA-256", "content": _digest(path)}
        subject = {"type": "application", "name": path.name, "version": version, "hashes": [digest]}
        bill_of(path).write_bytes(bill(subject, inside))


def add_checksums(target: Path) -> None:
    """Write the checksums of all files in a folder."""
    sums = "".join(f"{_digest(path)}  {path.name}\n" for path in sorted(target.iterdir()))
    (target / SUMS).write_text(sums)


def _build(source: ArtifactSource, project: Path, kind: str, target: Path) -> Path:
    """Make a wheel or an sdist with the backend that this environment has, and return its file."""
    with TemporaryDirectory(prefix="nftproxy-build-") as made:
        command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", made, str(project)]
        subprocess.run(command, check=True, env=source.environment, stdout=subprocess.DEVNULL)
        (file,) = Path(made).iterdir()
        return Path(shutil.copy(file, target))


def archived(files: Mapping[str, str], folder: str, epoch: int) -> bytes:
    """Return a tar archive with these files in a folder, compressed by gzip."""
    plain = BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in sorted(files.items()):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(text.encode()), epoch, 0o644
            archive.addfile(member, BytesIO(text.encode()))
    return gzip.compress(plain.getvalue(), mtime=epoch)


def components(requirements: str) -> Iterator[Mapping[str, object]]:
    """Yield the packages that requirements.txt pins, each with the hashes of its wheels and archives."""
    for text in re.split(r"^(?=\S+==)", requirements, flags=re.MULTILINE)[1:]:
        name, version = re.split("==| ", text, maxsplit=2)[:2]
        hashes = [{"alg": "SHA-256", "content": each} for each in re.findall("sha256:([0-9a-f]{64})", text)]
        yield python_component(name, version) | {"hashes": hashes}


def needed_component(requirement: str) -> Mapping[str, object]:
    """Return the component of a package that is needed in any version from a first."""
    name = re.split("[<>=!~ ]", requirement)[0]
    return {"type": "library", "name": name, "purl": f"pkg:pypi/{name}"}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
