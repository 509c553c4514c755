"""A hook of the build: the commit that a wheel or a source archive is made of, in nftproxy/commit.txt.

`git archive` has written it already into an export.  Elsewhere the environment says it, or git.  The environment
(NFTPROXY_COMMIT and NFTPROXY_SUBJECT) is for images, whose context has no history.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "nftproxy/commit.txt"


class CommitHook(BuildHookInterface[Any]):
    """Adds the file with the commit."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 -- hatchling's signature
        """Write the file beside the checkout, which stays as it is."""
        self._file = Path(mkdtemp(prefix="nftproxy-commit-")) / "commit.txt"
        self._file.write_text(_commit(Path(self.root)))
        build_data["force_include"][str(self._file)] = NAME

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the file."""
        shutil.rmtree(self._file.parent)


def _commit(root: Path) -> str:
    """The hash, with "-dirty" if files differ from it, and the subject of the commit.  "" if nobody knows it."""
    exported = (root / NAME).read_text()
    if not exported.startswith("$"):
        return exported
    if given := os.environ.get("NFTPROXY_COMMIT"):
        return f"{given}\n{os.environ.get('NFTPROXY_SUBJECT', '')}\n"
    try:
        commit, subject = _git(root, "log", "-1", "--format=%H%n%s").splitlines()
        return f"{commit}{'-dirty' * bool(_git(root, 'status', '--porcelain'))}\n{subject}\n"
    except (OSError, subprocess.CalledProcessError, ValueError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, text=True).stdout
