"""Builds the image that examples/deploy/Containerfile describes, with buildah.

No registry is asked: the base image is made once, by mmdebstrap, under the name that FROM asks for.  buildah keeps a
layer for each line, so a change of the package costs the last few lines only.  Its storage is in .trees/, apart from
the machine's own.  The output is .trees/nftproxy-image-ARCHITECTURE.tar, an archive for `docker load` and `ctr images
import`, and a bill of materials beside it.  Needs root, and a network at the first time.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from nftproxy import __version__
from tools.debian.packages import install
from tools.image.containerfile import setting, stages
from tools.image.materials import write_bill
from tools.image.wheels import MACHINES

CHECKOUT = Path(__file__).resolve().parents[2]
CONTAINERFILE = CHECKOUT / "examples" / "deploy" / "Containerfile"
TREES = CHECKOUT / ".trees"
NATIVE = next(name for name, machine in MACHINES.items() if machine == os.uname().machine)


def archive_of(architecture: str) -> Path:
    """The file of an image, not compressed."""
    return TREES / f"nftproxy-image-{architecture}.tar"


def bill_of(archive: Path) -> Path:
    """The file of the bill of materials of an artefact."""
    return archive.with_name(f"{archive.name}.cdx.json")


ARCHIVE = archive_of(NATIVE)
NAME = f"docker.io/library/nftproxy:{__version__}"
PINNED = re.compile(r"@sha256:[0-9a-f]{64}")
"""Pins the base image of a registry, which the base that is made here stands in for."""
OF_THIS_MACHINE = "--platform=$BUILDPLATFORM "
IGNORED = Path(__file__).with_name("containerignore")
TIMESTAMP = ("--timestamp", "315532800")
"""The time of each file in the image, 1980, so that the same checkout and packages make the same bytes."""
DEBIAN = CHECKOUT / "tools" / "debian"
ARCHIVES = (("debian", ""), ("debian", "-updates"), ("debian-security", "-security"))
"""Debian's archives with packages of a release, each with the end of the suite's name: mmdebstrap's defaults."""
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

NEEDED = {name: name for name in ("buildah", "containerd", "runc")}
"""Programs, and Debian's packages that have them."""


def build(architecture: str = NATIVE, *, mirror: str = "", may_reuse: bool = True) -> None:
    """Build the image from the checkout as it is now, and write its archive and its bill of materials.

    Args:
        architecture: Debian's name of it.
        mirror: where Debian's packages come from, with `{}` for the archive's name, "" for Debian's own mirror.
        may_reuse: whether lines that have not changed since an earlier build keep its layers.

    Raises:
        subprocess.CalledProcessError: a line of the Containerfile fails.
    """
    TREES.mkdir(exist_ok=True)
    with (TREES / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install(NEEDED)
        options: list[str | Path] = ["--ignorefile", IGNORED, *TIMESTAMP, *([] if may_reuse else ["--no-cache"])]
        options += _commit()
        archive = archive_of(architecture)
        build_archive(NAME, CONTAINERFILE, CHECKOUT, archive, *options, architecture=architecture, mirror=mirror)
        with unpacked(NAME) as root:
            write_bill(bill_of(archive), root)


def _commit() -> Iterator[str]:
    """The arguments that say which commit the checkout is of."""
    git = ("git", "-C", str(CHECKOUT))
    done = subprocess.run([*git, "log", "-1", "--format=%H%n%s"], check=False, capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain"], check=False, capture_output=True, text=True)
    if done.returncode == 0:
        commit, subject = done.stdout.splitlines()
        yield from ("--build-arg", f"COMMIT={commit}{'-dirty' * bool(changed.stdout)}")
        yield from ("--build-arg", f"SUBJECT={subject}")


def build_archive(
    name: str,
    recipe: Path,
    context: Path,
    archive: Path,
    *options: str | Path,
    architecture: str = NATIVE,
    mirror: str = "",
) -> None:
    """Build an image, and write its archive.

    Args:
        name: of the image, with its tag.
        recipe: its Containerfile.
        context: the folder that its files are copied from.
        archive: of the image.  An existing one is replaced.
        options: of `buildah build`.
        architecture: Debian's name of it.
        mirror: where Debian's packages come from, with `{}` for the archive's name, "" for Debian's own mirror.

    Raises:
        subprocess.CalledProcessError: a line of the Containerfile fails.
    """
    text = PINNED.sub("", recipe.read_text())
    found = stages(text)
    own = {setting(stage, "FROM").partition(" AS ")[2] for stage in found} | {"scratch"}
    for base in {setting(stage, "FROM").removeprefix(OF_THIS_MACHINE).split()[0] for stage in found} - own:
        _provide_base(base, mirror)
    click.echo(f"image: building {name} ({architecture})", err=True)
    plain = TREES / "Containerfile"
    plain.write_text(text)
    # Arguments that Docker gives by itself.
    platforms = ["--build-arg", f"BUILDPLATFORM=linux/{NATIVE}", "--build-arg", f"TARGETARCH={architecture}"]
    given = [f"--arch={architecture}", f"--tag={name}", f"--file={plain}", *_certificates(), *platforms, *options]
    # A history would name the layers of the build, and a build may reuse layers of another architecture.
    _buildah("build", "--pull-never", "--layers", "--isolation=chroot", "--omit-history", *given, context)
    archive.unlink(missing_ok=True)
    _buildah("push", "--quiet", name, f"docker-archive:{archive}:{name}")


def _provide_base(name: str, mirror: str) -> None:
    """Make Debian under the name that FROM asks for, as small as the "slim" images are."""
    full = f"docker.io/library/{name}"
    if not mirror and _buildah("images", "--quiet", "--filter", f"reference={full}"):
        return
    suite = name.removeprefix("debian:").removesuffix("-slim")
    click.echo(f"image: unpacking Debian ({suite})", err=True)
    archive = TREES / f"debian-{suite}.tar"
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{kind}/*" for kind in ("doc", "man", "locale")]
    command: list[str | Path] = [DEBIAN / "mmdebstrap.sh", "--quiet", "--variant=apt", *excluded, suite, archive]
    if mirror:
        command += [f"deb [check-valid-until=no] {mirror.format(name)} {suite}{part} main" for name, part in ARCHIVES]
    subprocess.run(command, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": TIMESTAMP[1]})
    container = _buildah("from", "scratch")
    _buildah("add", "--quiet", container, archive, "/")
    _buildah("commit", "--quiet", *TIMESTAMP, "--rm", container, full)
    archive.unlink()


def _certificates() -> list[str | Path]:
    """Let pip and apt trust this machine's certificates, without leaving them in the image."""
    if not CERTIFICATES.exists():
        return []
    settings = TREES / "pip.conf"
    settings.write_text(f"[global]\ncert = {CERTIFICATES}\n")
    return ["--volume", f"{settings}:/etc/pip.conf:ro", "--volume", f"{CERTIFICATES.parent}:{CERTIFICATES.parent}:O"]


@contextmanager
def unpacked(name: str) -> Iterator[Path]:
    """Give the folder with the files of an image that was built, for the block of a `with` statement."""
    container = _buildah("from", "--pull-never", name)
    try:
        yield Path(_buildah("mount", container))
    finally:
        _buildah("rm", container)


def _buildah(*arguments: str | Path) -> str:
    """Run buildah, and return its output.  Its progress goes to standard error."""
    root = TREES / "buildah"
    storage: list[str | Path] = ["--root", root, "--runroot", root.with_suffix(".run")]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        ["buildah", *storage, *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if arguments[0] == "build" else None,
        text=True,
    )
    if done.returncode:
        click.echo(done.stdout, err=True)
        done.check_returncode()
    return done.stdout.strip()
