"""Builds the image that examples/deploy/Containerfile describes, with buildah.

No registry is asked: the base image is made once, by mmdebstrap, under the name that FROM asks for.  buildah keeps a
layer for each line, so a change of the package costs the last few lines only.  Its storage is .trees/buildah, apart
from the machine's own.  The output is .trees/nftproxy-image.tar, an archive for `docker load` and `ctr images
import`, and .trees/nftproxy-image.cdx.json, its bill of materials.  Needs root, and a network at the first time.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from nftproxy import __version__
from tools.debian.packages import install
from tools.image.containerfile import setting, stages
from tools.image.materials import write_bill

CHECKOUT = Path(__file__).resolve().parents[2]
CONTAINERFILE = CHECKOUT / "examples" / "deploy" / "Containerfile"
TREES = CHECKOUT / ".trees"
ARCHIVE = TREES / "nftproxy-image.tar"
"""The image, not compressed."""
BILL = TREES / "nftproxy-image.cdx.json"
NAME = f"docker.io/library/nftproxy:{__version__}"
IGNORED = Path(__file__).with_name("containerignore")
TIMESTAMP = ("--timestamp", "315532800")
"""The time of each file in the image, 1980, so that the same checkout and packages make the same bytes."""
MIRROR = os.environ.get("DEBIAN_MIRROR", "")
"""The mirror that base and packages come from, such as a snapshot (snapshot.debian.org), "" for Debian's own."""
MMDEBSTRAP = CHECKOUT / "tools" / "debian" / "mmdebstrap.sh"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

NEEDED = {name: name for name in ("buildah", "containerd", "runc")}
"""Programs, and Debian's packages that have them."""


def build(*, may_reuse: bool = True) -> None:
    """Build the image from the checkout as it is now, and write its archive and its bill of materials.

    Args:
        may_reuse: whether lines that have not changed since an earlier build keep its layers.

    Raises:
        subprocess.CalledProcessError: a line of the Containerfile fails.
    """
    TREES.mkdir(exist_ok=True)
    with (TREES / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install(NEEDED)
        anew = [] if may_reuse else ["--no-cache"]
        build_archive(NAME, CONTAINERFILE, CHECKOUT, ARCHIVE, "--ignorefile", IGNORED, *TIMESTAMP, *anew)
        write_bill(BILL, _inside)


def build_archive(name: str, recipe: Path, context: Path, archive: Path, *options: str | Path) -> None:
    """Build an image, and write its archive.

    Args:
        name: of the image, with its tag.
        recipe: its Containerfile.
        context: the folder that its files are copied from.
        archive: of the image.  An existing one is replaced.
        options: of `buildah build`.

    Raises:
        subprocess.CalledProcessError: a line of the Containerfile fails.
    """
    found = stages(recipe.read_text())
    own = {setting(stage, "FROM").partition(" AS ")[2] for stage in found} | {"scratch"}
    for base in {setting(stage, "FROM").split()[0] for stage in found} - own:
        _provide_base(base)
    _say(f"building {name}")
    given = [*_network_settings(), *options, "--tag", name, "--file", recipe, context]
    _buildah("build", "--pull-never", "--layers", "--isolation=chroot", *given)
    archive.unlink(missing_ok=True)
    _buildah("push", "--quiet", name, f"docker-archive:{archive}:{name}")


def _provide_base(name: str) -> None:
    """Make Debian under the name that FROM asks for, as small as the "slim" images are."""
    full = f"docker.io/library/{name}"
    if not MIRROR and _buildah("images", "--quiet", "--filter", f"reference={full}"):
        return
    suite = name.removeprefix("debian:").removesuffix("-slim")
    _say(f"unpacking Debian ({suite})")
    archive = TREES / f"debian-{suite}.tar"
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{kind}/*" for kind in ("doc", "man", "locale")]
    mirror = [f"deb [check-valid-until=no] {MIRROR} {suite} main"] if MIRROR else []
    command: list[str | Path] = [MMDEBSTRAP, "--quiet", "--variant=apt", *excluded, suite, archive, *mirror]
    subprocess.run(command, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": TIMESTAMP[1]})
    container = _buildah("from", "scratch")
    _buildah("add", "--quiet", container, archive, "/")
    _buildah("commit", "--quiet", *TIMESTAMP, "--rm", container, full)
    archive.unlink()


def _network_settings() -> list[str | Path]:
    """Let pip and apt trust this machine's certificates, without leaving them in the image."""
    if not CERTIFICATES.exists():
        return []
    settings = TREES / "pip.conf"
    settings.write_text(f"[global]\ncert = {CERTIFICATES}\n")
    return ["--volume", f"{CERTIFICATES.parent}:{CERTIFICATES.parent}:O", "--volume", f"{settings}:/etc/pip.conf:ro"]


def _inside(*command: str) -> str:
    """The output of a command in a container of the image."""
    container = _buildah("from", "--pull-never", NAME)
    try:
        return _buildah("run", "--isolation=chroot", "--user=0", container, "--", *command)
    finally:
        _buildah("rm", container)


def _buildah(*arguments: str | Path) -> str:
    """Run buildah and return its output.  Its progress goes to our standard error."""
    storage: list[str | Path] = ["--root", TREES / "buildah", "--runroot", TREES / "buildah-run"]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        ["buildah", *storage, *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if arguments[0] == "build" else None,
        text=True,
    )
    if done.returncode:
        _say(done.stdout)
        done.check_returncode()
    return done.stdout.strip()


def _say(what: str) -> None:
    print(f"image: {what}", file=sys.stderr, flush=True)  # noqa: T201 -- it takes a while
