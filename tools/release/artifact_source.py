"""The source that artefacts are made of: what HEAD has committed, at the time of its commit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]


class ArtifactSource(NamedTuple):
    """An export of a commit."""

    directory: Path
    epoch: int
    """The time of the commit, in seconds since the epoch.  Each file in an artefact has it."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs that make artefacts."""
        return os.environ | {"SOURCE_DATE_EPOCH": str(self.epoch), "LC_ALL": "C.UTF-8", "TZ": "UTC"}


@contextmanager
def exported(commit: str = "HEAD") -> Iterator[ArtifactSource]:
    """Export a commit to a folder for the time of the block.

    Raises:
        subprocess.CalledProcessError: there is no git, or no such commit.
    """
    with TemporaryDirectory(prefix="nftproxy-source-") as name:
        subprocess.run(["tar", "-x", "-C", name], check=True, input=git("archive", "--format=tar", commit))
        yield ArtifactSource(Path(name), int(git("log", "-1", "--format=%ct", commit)))


def uncommitted() -> str:
    """Return the files that differ from HEAD, as git lists them."""
    return git("status", "--porcelain").decode()


def git(*arguments: str) -> bytes:
    """Return the output of a command of git in the checkout."""
    return subprocess.run(["git", "-C", CHECKOUT, *arguments], check=True, stdout=subprocess.PIPE).stdout
