"""The image's bill of materials, in CycloneDX 1.6: Debian's packages and Python's, as the image itself lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    components = sorted([*_debian(run(*DEBIAN)), *_python(run(*PYTHON))], key=lambda each: each["purl"])
    subject = {"type": "container", "name": "nftproxy", "version": __version__}
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": subject}}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(bill | {"components": components})) + b"\n")


def _debian(listing: str) -> Iterator[dict[str, str]]:
    for name, version, architecture in (line.split("\t") for line in listing.splitlines()):
        yield _component(name, version, f"pkg:deb/debian/{name}@{version}?arch={architecture}")


def _python(listing: str) -> Iterator[dict[str, str]]:
    for name, version in (line.split("\t") for line in listing.splitlines()):
        yield _component(name, version, f"pkg:pypi/{name.lower().replace('_', '-')}@{version}")


def _component(name: str, version: str, purl: str) -> dict[str, str]:
    return {"type": "library", "name": name, "version": version, "purl": purl}
