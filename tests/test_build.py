"""The program says which commit it was built from."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nftproxy import __version__
from nftproxy.build import FILE, Build, build_of, this_build
from tests.conftest import CHECKOUT

HASH = "0123456789abcdef0123456789abcdef01234567"
PROJECT = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitattributes", ".gitignore")
"""Files that a build needs, besides the folders of the package."""


@pytest.mark.parametrize(
    ("text", "build", "label", "shown"),
    [
        (f"{HASH}\nRelease {__version__}\n", Build("0123456789ab", True), "0123456789ab", "(commit 0123456789ab)"),
        (
            f"{HASH}\nRelease 9.9.9\n",
            Build("0123456789ab", False),
            "0123456789ab-unreleased",
            "(unreleased, commit 0123456789ab)",
        ),
        (
            f"{HASH}-dirty\nRelease {__version__}\n",
            Build("0123456789ab-dirty", False),
            "0123456789ab-dirty-unreleased",
            "(unreleased, commit 0123456789ab-dirty)",
        ),
        (f"{HASH}\n", Build("0123456789ab", False), "0123456789ab-unreleased", "(unreleased, commit 0123456789ab)"),
        ("", Build("unknown", False), "unknown", "(unreleased, commit unknown)"),
        ("$Format:%H$\n$Format:%s$\n", Build("checkout", False), "checkout", "(unreleased, a checkout)"),
    ],
    ids=["release", "other commit", "dirty", "no subject", "unknown", "checkout"],
)
def test_a_build_is_told_by_its_commit(text: str, build: Build, label: str, shown: str) -> None:
    """Only the clean commit that made the version is a release, and any other build says what it is."""
    found = build_of(text)
    assert found == build
    assert (found.label, found.text) == (label, f"{__version__} {shown}")


def test_this_is_a_checkout() -> None:
    """The file in the checkout has the placeholders that `git archive` replaces."""
    assert this_build() == Build("checkout", is_release=False)
    assert f"{FILE.relative_to(CHECKOUT)} export-subst" in (CHECKOUT / ".gitattributes").read_text()


def git(*arguments: str | Path, where: Path) -> str:
    """The output of git in a folder."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=where, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with the project's build, and one commit."""
    made = tmp_path / "clone"
    for folder in ("nftproxy", "templates"):
        shutil.copytree(CHECKOUT / folder, made / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROJECT:
        shutil.copy(CHECKOUT / name, made)
    git("init", "--quiet", where=made)
    git("add", "--all", where=made)
    git("commit", "--quiet", "--message", f"Release {__version__}", where=made)
    return made


def wheel_build(project: Path) -> Build:
    """The build that a wheel of a project says that it is."""
    pytest.importorskip("hatchling")
    code = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", code, project.parent], cwd=project, check=True, stdout=subprocess.PIPE, text=True
    )
    with zipfile.ZipFile(project.parent / made.stdout.split()[-1]) as archive:
        assert archive.namelist().count("nftproxy/commit.txt") == 1
        return build_of(archive.read("nftproxy/commit.txt").decode())


@pytest.mark.slow
def test_a_wheel_has_the_commit_of_its_tree(clone: Path) -> None:
    """A wheel of a clean commit has its hash, a wheel of a changed tree says so, and an export has the hash itself."""
    commit = git("rev-parse", "HEAD", where=clone)[:12]
    assert wheel_build(clone) == Build(commit, is_release=True)
    export = clone.parent / "export"
    export.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=clone, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", export], check=True, input=archive)
    assert wheel_build(export) == Build(commit, is_release=True)
    (clone / "README.md").write_text("changed")
    assert wheel_build(clone) == Build(f"{commit}-dirty", is_release=False)
