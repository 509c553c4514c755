"""Checks an installed nftproxy against the checkout it was built from, run where that can't be imported.

Usage: smoke.py CHECKOUT [judge]

With `judge` nftproxy-conformance must be installed too, without it nothing of that may be.
"""

import subprocess
import sys
import tomllib
from importlib.metadata import distributions
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


def wrong_files(checkout: Path) -> str | None:
    """Return what is wrong with the files of the installed nftproxy, or nothing."""
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


def wrong_judge(checkout: Path, *, is_wanted: bool) -> str | None:
    """Return what is wrong with the packages of the judge, of which all or none must be installed, or nothing."""
    project = tomllib.loads((checkout / "conformance" / "pyproject.toml").read_text())["project"]
    judge = {project["name"], *(each.partition(">=")[0] for each in project["dependencies"])} - {"nftproxy"}
    here = {each.name for each in distributions() if str(each.locate_file("")).startswith(sys.prefix)}
    if judge & here != (judge if is_wanted else set()):
        return f"of the judge's packages {sorted(judge)} these are installed: {sorted(judge & here)}"
    asked = [["nftproxy", "conformance", "--seed", "x"]]
    expected = (2, "'x' is not a valid integer") if is_wanted else (1, "pip install ./conformance")
    if is_wanted:
        asked.append([sys.executable, "-m", "nftproxy_conformance.apiserver", "--port", "x"])
    for command in asked:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != expected[0] or expected[1] not in done.stderr:
            return f"{command}: status {done.returncode}, {done.stderr}"
    return None


def main() -> str | None:
    """Return what is wrong with the installed packages, or nothing."""
    checkout = Path(sys.argv[1]).resolve()
    return wrong_files(checkout) or wrong_judge(checkout, is_wanted=sys.argv[2:] == ["judge"])


if __name__ == "__main__":
    sys.exit(main())
