"""The tables of each released version, with the cluster that they are of.

tests/versions/VERSION has `manifests` and `config.yaml`, which are examples/everything at that time, and the rules that
this version wrote into an empty kernel: `tables.nft`, and `wide.nft` where the library can remember IPv6 clients.
`python -m tools.release` writes the folder of the version that it makes.  A released version's folder never changes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from nftproxy.installed_fields import FIELDS
from nftproxy.library import Cluster, load
from nftproxy.model.addresses import Family
from nftproxy.model.settings import Capabilities
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Transaction, delete_transaction, join
from nftproxy.sources.config_documents import load_config
from tests.support.examples import CHECKOUT, NODE

DIRECTORY = CHECKOUT / "tests" / "versions"
FILES = {False: "tables.nft", True: "wide.nft"}
"""The file of the rules, by whether the library has wide maps."""


class OwnVersion(NamedTuple):
    """A version of nftproxy, with or without wide maps."""

    directory: Path
    wide_maps: bool

    @property
    def tables(self) -> Transaction:
        """Replaces all tables by those of this version, as it does with tables of another shape."""
        text = (self.directory / FILES[self.wide_maps]).read_text()
        return join([*map(delete_transaction, Family), Transaction(text)])

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.directory / "config.yaml"

    @property
    def manifests(self) -> Path:
        """The folder of the cluster's objects."""
        return self.directory / "manifests"

    @property
    def cluster(self) -> Cluster:
        """The cluster, as the present code reads it."""
        capabilities = Capabilities(wide_maps=self.wide_maps)
        return Cluster(load(self.manifests), NODE, load_config(self.config, FIELDS)[0], capabilities=capabilities)


def own_versions(*, wide_maps: bool) -> list[OwnVersion]:
    """All versions whose tables are kept, oldest first."""
    found = [path for path in DIRECTORY.iterdir() if path.is_dir()]
    found.sort(key=lambda path: [int(number) for number in path.name.split(".")])
    return [OwnVersion(path, wide_maps) for path in found]


def keep(version: str) -> None:
    """Write the folder of the present version."""
    directory = DIRECTORY / version
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    example = CHECKOUT / "examples" / "everything"
    shutil.copytree(example / "manifests", directory / "manifests")
    shutil.copy(example / "config.yaml", directory)
    for wide_maps, file in FILES.items():
        pipeline: Pipeline = OwnVersion(directory, wide_maps).cluster.pipeline
        (directory / file).write_text(pipeline.full_transaction({}).text)
