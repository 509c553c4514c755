"""The Debian package: the program, the Python packages that the image holds too, and the systemd unit.

The packages are the wheels of examples/deploy/requirements.txt, so any machine can make the package for any
architecture.  debhelper makes it from the files in the folder `debian`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from tempfile import TemporaryDirectory

from nftproxy.commands.completion import completion_script
from tools.image.wheels import of_debian, run_pip
from tools.project import MAINTAINER, URL
from tools.release.artifact_source import ArtifactSource
from tools.release.man_page import man_page

FILES = Path(__file__).with_name("debian")
UNUSED = (
    "bin",
    "*/tests",
    *(f"*.dist-info/{name}" for name in ("RECORD", "direct_url.json", "REQUESTED", "INSTALLER")),
)
"""Left out: programs of packages, and what only pip reads, some of which differs from build to build."""
SOURCES = ("*.c", "*.h", "*.pyx", "*.pxd")
OF_AN_ENVIRONMENT = "an environment in /opt/nftproxy (python3 -m venv --system-site-packages, then pip install), "


DESTINATIONS = {
    "launcher": "usr/sbin/nftproxy",
    "kubectl-launcher": "usr/bin/kubectl-nftproxy",
    "config.yaml": "etc/nftproxy/config.yaml",
}
"""The places of files of debian/."""
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/nftproxy",
    "fish": "usr/share/fish/vendor_completions.d/nftproxy.fish",
    "zsh": "usr/share/zsh/vendor-completions/_nftproxy",
}
"""The files from which Debian's shells load the completion of commands."""


def deb(source: ArtifactSource, version: str, wheel: Path, architecture: str, target: Path) -> Path:
    """Make the package of an architecture, and return its file in the folder `target`.

    Raises:
        subprocess.CalledProcessError: pip finds no wheel for a dependency, or debhelper fails.
    """
    with TemporaryDirectory(prefix="nftproxy-deb-") as name:
        tree = Path(name) / f"nftproxy-{version}"
        shutil.copytree(FILES, tree / "debian")
        _install(source, wheel, architecture, tree)
        _describe(source, version, tree / "debian")
        command = ["dpkg-buildpackage", "--build=binary", "--no-sign", "--no-check-builddeps", f"-a{architecture}"]
        environment = source.environment | {"DEB_BUILD_OPTIONS": "nocheck noautodbgsym"}
        subprocess.run(command, check=True, cwd=tree, env=environment, capture_output=True)
        (made,) = tree.parent.glob("*.deb")
        return Path(shutil.copy(made, target))


def _install(source: ArtifactSource, wheel: Path, architecture: str, tree: Path) -> None:
    """Put the files of the package below `root`."""
    packages = tree / "root/usr/lib/nftproxy"
    requirements = source.directory / "examples/deploy/requirements.txt"
    into = ("install", "--no-compile", f"--target={packages}")
    run_pip(*into, *of_debian(architecture), "--require-hashes", f"--requirement={requirements}")
    run_pip(*into, "--upgrade", str(wheel))
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            (shutil.rmtree if path.is_dir() else Path.unlink)(path)
    for pattern in SOURCES:
        for path in packages.rglob(pattern):
            path.unlink()
    for file, place in DESTINATIONS.items():
        path = tree / "root" / place
        path.parent.mkdir(parents=True)
        (tree / "debian" / file).rename(path)
    for shell, place in COMPLETIONS.items():
        path = tree / "root" / place
        path.parent.mkdir(parents=True)
        path.write_text(completion_script(shell) + "\n")
    for program in ("usr/sbin/nftproxy", "usr/bin/kubectl-nftproxy"):
        (tree / "root" / program).chmod(0o755)


def _describe(source: ArtifactSource, version: str, debian: Path) -> None:
    """Write the files of debian/ that depend on the version."""
    page = debian / "nftproxy.8"
    page.write_text(man_page(page.read_text()))
    control = debian / "control"
    control.write_text(control.read_text().replace("@MAINTAINER@", MAINTAINER).replace("@HOMEPAGE@", URL))
    date = formatdate(source.epoch)
    (debian / "changelog").write_text(
        f"nftproxy ({version}-1) trixie; urgency=medium\n\n  * Version {version}, see CHANGELOG.md.\n\n"
        f" -- {MAINTAINER}  {date}\n"
    )
    unit = (source.directory / "examples/deploy/nftproxy.service").read_text()
    unit = unit.replace("/opt/nftproxy/bin/nftproxy", "/usr/sbin/nftproxy").replace(OF_AN_ENVIRONMENT, "")
    assert "/opt" not in unit
    (debian / "nftproxy.service").write_text(unit)


def lint(packages: Sequence[Path]) -> str:
    """Return the complaints of lintian about packages."""
    command = ["lintian", "--fail-on=none", "--tag-display-limit=0", *map(str, packages)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
