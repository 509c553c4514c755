"""`python -m tools.release`: make the artefacts of HEAD twice, compare them, check them, and leave them in dist/."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from nftproxy import __version__
from tools.image import build as image
from tools.release.artifact_source import CHECKOUT, exported, uncommitted
from tools.release.artifacts import describe, make_artifacts
from tools.release.candidate import prepare
from tools.release.deb_package import lint

TARGET = CHECKOUT / "dist"
NEEDED = {"debhelper": "dh", "lintian": "lintian"}
"""Debian's packages for making the Debian package, each with a program of it."""


@click.command()
@click.option("--candidate", metavar="VERSION", help="Turn HEAD into this version first, in a commit.")
@click.option("--image/--no-image", "with_image", default=True, show_default=True, help="Whether to make the image.")
def main(candidate: str | None, *, with_image: bool) -> None:
    """Make the artefacts of a version."""
    if missing := [package for package, program in NEEDED.items() if shutil.which(program) is None]:
        raise click.ClickException(f"please install {' and '.join(missing)} (names are Debian's)")
    if changed := uncommitted():
        raise click.ClickException(f"commit or remove these first, as artefacts are of a commit:\n{changed}")
    if candidate:
        prepare(candidate)
        options = [] if with_image else ["--no-image"]
        sys.exit(
            subprocess.run([sys.executable, "-m", "tools.release", *options], cwd=CHECKOUT, check=False).returncode
        )
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
        if with_image:
            add_image(TARGET / f"nftproxy-image-{__version__}.tar", again)
        describe(source, __version__, TARGET)
    for path in sorted(TARGET.iterdir()):
        click.echo(f"{path.stat().st_size:>11,}  {path.relative_to(CHECKOUT)}")


def add_image(file: Path, again: Path) -> None:
    """Build the image with the layers that are there, and anew.  Add it with its bill if both are the same.

    Raises:
        click.ClickException: they differ.
    """
    for target, may_reuse in ((file, True), (again / file.name, False)):
        image.build(may_reuse=may_reuse)
        shutil.copy(image.ARCHIVE, target)
    if not filecmp.cmp(file, again / file.name, shallow=False):
        raise click.ClickException("two builds of the image differ")
    shutil.copy(image.BILL, file.with_name(f"{file.name}.cdx.json"))


def differing(one: Path, other: Path) -> list[str]:
    """Return the names of files that only one folder has, or that differ."""
    names = sorted({path.name for folder in (one, other) for path in folder.iterdir()})
    same, _, _ = filecmp.cmpfiles(one, other, names, shallow=False)
    return [name for name in names if name not in same]


if __name__ == "__main__":
    main()
