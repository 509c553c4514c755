"""`python3 tools/debian/wheels.py TREE MACHINE`: put the tests' dependencies into /venv of an unpacked Debian.

For another architecture, whose own pip would take half an hour emulated.  The checkout is at /src there, and is used as
it is, not installed.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
GLIBC = (17, 28)
"""manylinux's versions of glibc, 2.x, for which wheels are made."""


def requirements() -> Iterator[str]:
    """Yield what the tests need from the Python package index."""
    for folder in (CHECKOUT, CHECKOUT / "conformance"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        needed = project["dependencies"] + project.get("optional-dependencies", {}).get("test", [])
        yield from (each for each in needed if not each.startswith("nftproxy"))


def main(tree: Path, machine: str) -> None:
    """Write /venv, with Debian's own Python and a view of Debian's packages."""
    python = (tree / "usr/bin/python3").readlink().name
    venv = tree / "venv"
    packages = venv / "lib" / python / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (venv / "bin").mkdir(exist_ok=True)
    for name in ("python", "python3"):
        (venv / "bin" / name).unlink(missing_ok=True)
        (venv / "bin" / name).symlink_to("/usr/bin/python3")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    (packages / "checkout.pth").write_text("/src\n/src/conformance\n")
    version = python.removeprefix("python")
    tags = [f"--abi={tag}" for tag in (f"cp{version.replace('.', '')}", "abi3", "none")]
    tags += [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}", *tags]
    subprocess.run([*command, f"--target={packages}", *requirements()], check=True, stdin=subprocess.DEVNULL)
    (venv / ".nftproxy-setup").write_text("test\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
