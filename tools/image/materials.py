"""Bills of materials in CycloneDX 1.6.  The image itself lists Debian's and Python's packages for its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from nftproxy import __version__

FORMAT = "${Package}\t${Version}\t${Architecture}\n"


def write_bill(file: Path, root: Path) -> None:
    """Write the contents of an image, whose root directory is given."""
    subject = {"type": "container", "name": "nftproxy", "version": __version__}
    file.write_bytes(bill(subject, [*_debian(root), *_python(root)]))


def bill(subject: Mapping[str, object], components: Iterable[Mapping[str, object]]) -> bytes:
    """Return a bill of materials, in the order of the package URLs (`purl`)."""
    about = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": subject}}
    found = sorted(components, key=lambda each: str(each["purl"]))
    return msgspec.json.format(msgspec.json.encode(about | {"components": found})) + b"\n"


def _debian(root: Path) -> Iterator[dict[str, str]]:
    query = ["dpkg-query", f"--admindir={root / 'var/lib/dpkg'}", "--show", f"--showformat={FORMAT}"]
    listing = subprocess.run(query, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name, version, architecture in (line.split("\t") for line in listing.splitlines()):
        yield _component(name, version, f"pkg:deb/debian/{name}@{version}?arch={architecture}")


def _python(root: Path) -> Iterator[dict[str, str]]:
    for each in metadata.distributions(path=[str(path) for path in root.glob("venv/lib/python*/site-packages")]):
        yield python_component(each.name, each.version)


def python_component(name: str, version: str) -> dict[str, str]:
    """Return the component of a Python package."""
    return _component(name, version, f"pkg:pypi/{name.lower().replace('_', '-')}@{version}")


def _component(name: str, version: str, purl: str) -> dict[str, str]:
    return {"type": "library", "name": name, "version": version, "purl": purl}
