"""`python -m tools.release`: make the artefacts of HEAD twice, compare them, check them, and leave them in dist/."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from nftproxy import __version__
from tools.image import build as image
from tools.image.wheels import MACHINES
from tools.release.artifact_source import CHECKOUT, exported, uncommitted
from tools.release.artifacts import add_checksums, describe, make_artifacts
from tools.release.candidate import CHANGELOG, notes, prepare
from tools.release.deb_package import lint

TARGET = CHECKOUT / "dist"
NOTES = CHECKOUT / "build" / "notes.md"
"""The section of CHANGELOG.md, which the workflow `release` gives to the forge."""
NEEDED = {"debhelper": "dh", "lintian": "lintian"}
"""Debian's packages for making the Debian package, each with a program of it."""


@click.command()
@click.option("--candidate", metavar="VERSION", help="Turn HEAD into this version first, in a commit.")
@click.option("--image/--no-image", "with_image", default=True, show_default=True, help="Whether to make the images.")
@click.option("--snapshot", is_flag=True, help="Take Debian's packages from snapshot.debian.org, of the commit's day.")
def main(candidate: str | None, *, with_image: bool, snapshot: bool) -> None:
    """Make the artefacts of a version."""
    if missing := [package for package, program in NEEDED.items() if shutil.which(program) is None]:
        raise click.ClickException(f"please install {' and '.join(missing)} (names are Debian's)")
    if changed := uncommitted():
        raise click.ClickException(f"commit or remove these first, as artefacts are of a commit:\n{changed}")
    if candidate:
        prepare(candidate)
        options = ["--no-image"] * (not with_image) + ["--snapshot"] * snapshot
        command = [sys.executable, "-m", "tools.release", *options]
        sys.exit(subprocess.run(command, cwd=CHECKOUT, check=False).returncode)
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    with exported() as source, TemporaryDirectory(prefix="nftproxy-again-") as name:
        again = Path(name)
        make_artifacts(source, __version__, TARGET)
        make_artifacts(source, __version__, again)
        if different := differing(TARGET, again):
            raise click.ClickException(f"two builds differ in {', '.join(different)}")
        if complaints := lint(list(TARGET.glob("*.deb"))):
            raise click.ClickException(f"lintian complains:\n{complaints}")
        describe(source, __version__, TARGET)
        for architecture in MACHINES if with_image else ():
            add_image(architecture, snapshot_of(source.epoch) if snapshot else "", again)
        add_checksums(TARGET)
        write_notes(source.directory / CHANGELOG.name)
    for path in sorted(TARGET.iterdir()):
        click.echo(f"{path.stat().st_size:>11,}  {path.relative_to(CHECKOUT)}")


def write_notes(changelog: Path) -> None:
    """Write the notes of the release, if the changelog has a section for this version."""
    NOTES.parent.mkdir(exist_ok=True)
    try:
        NOTES.write_text(notes(changelog.read_text(), __version__))
    except ValueError as error:
        click.echo(f"no notes: {error}", err=True)


def snapshot_of(epoch: int) -> str:
    """Debian's archives as they were when the day of a time began, in UTC."""
    return time.strftime("http://snapshot.debian.org/archive/{}/%Y%m%dT000000Z", time.gmtime(epoch))


def add_image(architecture: str, mirror: str, again: Path) -> None:
    """Build an image with the layers that are there, and anew.  Add it with its bill if both are the same.

    Raises:
        click.ClickException: they differ.
    """
    made = image.archive_of(architecture)
    file = TARGET / f"nftproxy-image-{__version__}-{architecture}.tar"
    for target, may_reuse in ((file, True), (again / file.name, False)):
        image.build(architecture, mirror=mirror, may_reuse=may_reuse)
        shutil.copy(made, target)
    if not filecmp.cmp(file, again / file.name, shallow=False):
        raise click.ClickException(f"two builds of the image for {architecture} differ")
    shutil.copy(image.bill_of(made), image.bill_of(file))


def differing(one: Path, other: Path) -> list[str]:
    """Return the names of files that only one folder has, or that differ."""
    names = sorted({path.name for folder in (one, other) for path in folder.iterdir()})
    same, _, _ = filecmp.cmpfiles(one, other, names, shallow=False)
    return [name for name in names if name not in same]


if __name__ == "__main__":
    main()
