"""Bills of materials in CycloneDX 1.6.  The image itself lists Debian's and Python's packages for its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from nftproxy import __version__

DEBIAN = ("dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${Architecture}\n")
LIST_PYTHON = """\
import importlib.metadata, sys
for each in importlib.metadata.distributions(path=[path for path in sys.path if "/venv/" in path]):
    print(each.name, each.version, sep="\\t")
"""
PYTHON = ("/venv/bin/python", "-c", LIST_PYTHON)


def write_bill(file: Path, run: Callable[..., str]) -> None:
    """Write the image's contents.  `run` returns the output of a command in it."""
    subject = {"type": "container", "name": "nftproxy", "version": __version__}
    file.write_bytes(bill(subject, [*_debian(run(*DEBIAN)), *_python(run(*PYTHON))]))


def bill(subject: Mapping[str, object], components: Iterable[Mapping[str, object]]) -> bytes:
    """Return a bill of materials, in the order of the package URLs (`purl`)."""
    about = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": subject}}
    found = sorted(components, key=lambda each: str(each["purl"]))
    return msgspec.json.format(msgspec.json.encode(about | {"components": found})) + b"\n"


def _debian(listing: str) -> Iterator[dict[str, str]]:
    for name, version, architecture in (line.split("\t") for line in listing.splitlines()):
        yield _component(name, version, f"pkg:deb/debian/{name}@{version}?arch={architecture}")


def _python(listing: str) -> Iterator[dict[str, str]]:
    for name, version in (line.split("\t") for line in listing.splitlines()):
        yield python_component(name, version)


def python_component(name: str, version: str) -> dict[str, str]:
    """Return the component of a Python package."""
    return _component(name, version, f"pkg:pypi/{name.lower().replace('_', '-')}@{version}")


def _component(name: str, version: str, purl: str) -> dict[str, str]:
    return {"type": "library", "name": name, "version": version, "purl": purl}
