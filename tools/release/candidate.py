"""Turns the checkout into a version: its number, its changelog, its names and its tables, in one commit."""

from __future__ import annotations

import datetime
import re

from nftproxy import __version__
from tests.support.own_versions import keep
from tests.test_stability import FILE as STABLE
from tests.test_stability import NEXT, stable, updated
from tools.project import URL
from tools.release.artifact_source import CHECKOUT, git

CHANGELOG = CHECKOUT / "CHANGELOG.md"
WITH_IMAGE = (
    *sorted((CHECKOUT / "examples" / "deploy").iterdir()),
    CHECKOUT / "docs" / "first-steps.md",
    CHECKOUT / "README.md",
)
"""Files that name the image with its version."""
UNRELEASED = "## [Unreleased]\n"


def prepare(version: str) -> None:
    """Write the version into all files that have it, and commit them.

    Raises:
        ValueError: it is no version, or has a tag, or the changelog has nothing about it.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"{version!r} is not a version such as 0.2.0")
    if git("tag", "--list", f"v{version}"):
        raise ValueError(f"{version} has a tag")
    today = datetime.datetime.now(datetime.UTC).date()
    CHANGELOG.write_text(with_section(CHANGELOG.read_text(), version, today.isoformat()))
    STABLE.write_text(with_version(updated(STABLE.read_text(), stable()), version))
    (CHECKOUT / "nftproxy" / "version.py").write_text(
        f'"""The version of this package.  The build reads it here."""\n\n__version__ = "{version}"\n'
    )
    for path in WITH_IMAGE:
        text = path.read_text().replace(f"nftproxy:{__version__}", f"nftproxy:{version}")
        text = text.replace(f"image.version={__version__}", f"image.version={version}")
        path.write_text(with_address(text))
    keep(version)
    git("add", "--all")
    git("commit", "--quiet", "--message", f"Release {version}")


def with_address(text: str) -> str:
    """Return the text of a file with the project's address in the image's label."""
    return re.sub(r"(image\.source)=\S+", rf"\1={URL}", text)


def with_section(changelog: str, version: str, date: str) -> str:
    """Return the changelog with its unreleased changes under a version.  An earlier candidate's section joins them.

    Raises:
        ValueError: there are none.
    """
    changelog = re.sub(rf"^{re.escape(f'## [{version}] - ')}.*\n\n", "", changelog, flags=re.MULTILINE)
    before, heading, after = changelog.partition(UNRELEASED)
    if not heading or not after.partition("\n## [")[0].strip():
        raise ValueError("CHANGELOG.md has nothing under [Unreleased]")
    return f"{before}{UNRELEASED}\n## [{version}] - {date}\n{after}"


def notes(changelog: str, version: str) -> str:
    """Return the text of a version's section, which the release on the forge has for notes.

    Raises:
        ValueError: there is no such section.
    """
    found = re.search(
        rf"^## \[{re.escape(version)}\] - [^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if not found:
        raise ValueError(f"CHANGELOG.md has no section for {version}")
    return found[1].strip() + "\n"


def with_version(names: str, version: str) -> str:
    """Return docs/stable.txt with a version for the lines that have none."""
    return re.sub(f"^{NEXT} ", f"{version} ", names, flags=re.MULTILINE)
