"""Checks an installed nftproxy against the checkout it was built from, run where that can't be imported.

Usage: smoke.py CHECKOUT
"""

import sys
from pathlib import Path

import nftproxy
from nftproxy.templates_dir import deploy_templates_dir, templates_dir


def names(directory: Path) -> list[str]:
    """Return the files below a directory, relative to it and sorted."""
    return sorted(
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def main() -> str | None:
    """Return what is wrong with the installed package, or nothing."""
    checkout = Path(sys.argv[1]).resolve()
    package = Path(nftproxy.__file__).resolve().parent
    if package == checkout / "nftproxy":
        return f"nftproxy was imported from the checkout {checkout}, not from the wheel"
    expected, found = names(checkout / "templates"), names(templates_dir())
    if not expected or found != expected:
        return f"{templates_dir()} holds {found}, the checkout's templates/ {expected}"
    if names(deploy_templates_dir()) != names(checkout / "nftproxy" / "deploy"):
        return f"{deploy_templates_dir()} lacks what the checkout's nftproxy/deploy/ has"
    print(f"nftproxy {nftproxy.__version__} in {package}: {len(found)} templates")
    return None


if __name__ == "__main__":
    sys.exit(main())
