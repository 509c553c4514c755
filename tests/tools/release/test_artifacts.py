"""Artefacts: archives and bills that are the same each time, and the texts of a version."""

from __future__ import annotations

import configparser
import gzip
import io
import re
import tarfile
from pathlib import Path

import pytest

from nftproxy import __version__
from tests.conftest import CHECKOUT
from tests.support.own_versions import DIRECTORY
from tests.test_stability import FILE as STABLE
from tools.image.build import ARCHIVES
from tools.image.wheels import PYTHON
from tools.project import URL
from tools.release.__main__ import differing, snapshot_of
from tools.release.artifacts import archived, components
from tools.release.candidate import CHANGELOG, notes, with_address, with_section, with_version
from tools.release.deb_package import FILES

CHANGES = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.1.0] - 2026-01-01\n\nThe first.\n"


def test_an_archive_depends_on_its_files_alone() -> None:
    """The order in which files are given makes no difference, and each has the time of the commit."""
    one, other = ({"a": "1", "b/c": "2"}, {"b/c": "2", "a": "1"})
    made = archived(one, "top", 1_000_000_000)
    assert made == archived(other, "top", 1_000_000_000)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(made))) as archive:
        assert [(each.name, each.mtime) for each in archive] == [("top/a", 1_000_000_000), ("top/b/c", 1_000_000_000)]


def test_builds_are_compared_byte_by_byte(tmp_path: Path) -> None:
    """A file that differs, or that only one build has, is named."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, files in ((one, {"same": "1", "other": "1", "alone": ""}), (other, {"same": "1", "other": "2"})):
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    assert differing(one, other) == ["alone", "other"]


def test_a_snapshot_has_security_updates_too() -> None:
    """The address is that of a day, for each of Debian's archives."""
    found = {snapshot_of(1_000_000_000).format(name) for name, _ in ARCHIVES}
    days = "http://snapshot.debian.org/archive/debian{}/20010909T000000Z"
    assert found == {days.format(""), days.format("-security")}


def test_a_bill_has_each_package_with_its_hashes() -> None:
    """Each line of requirements.txt is a component with its version and all of its hashes."""
    text = (CHECKOUT / "examples/deploy/requirements.txt").read_text()
    found = [(each["purl"], len(each["hashes"])) for each in components(text)]  # type: ignore[arg-type]
    pins = re.findall(r"^(\S+)==(\S+)", text, re.MULTILINE)
    assert [purl for purl, _ in found] == [f"pkg:pypi/{name}@{version}" for name, version in pins]
    assert sum(count for _, count in found) == text.count("--hash=sha256:")


def released(changelog: str) -> list[str]:
    """Return the versions that a changelog has, newest first."""
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)


def test_a_release_takes_the_unreleased_changes() -> None:
    """The section of the version gets them, and the next changes get an empty one."""
    made = with_section(CHANGES, "0.2.0", "2026-02-02")
    assert made.startswith("# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-02-02\n\n### Added\n\n- A thing.\n")
    assert released(made) == ["0.2.0", "0.1.0"]


def test_a_release_without_changes_is_refused() -> None:
    """Without a word about it in the changelog there is no version."""
    with pytest.raises(ValueError, match="nothing under"):
        with_section(with_section(CHANGES, "0.2.0", "2026-02-02"), "0.3.0", "2026-03-03")


def test_a_candidate_may_be_made_again() -> None:
    """Changes after a candidate join its section, which gets the new date."""
    changed = CHANGES.replace("- A thing.", "- Another.").replace(
        "[0.1.0] - 2026-01-01\n\n", "[0.1.0] - 2026-01-01\n\n- A thing.\n\n"
    )
    made = with_section(changed, "0.1.0", "2026-02-02")
    assert made == (
        "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-02-02\n\n"
        "### Added\n\n- Another.\n\n- A thing.\n\nThe first.\n"
    )


def test_notes_are_the_section_of_the_version() -> None:
    """The release on the forge has the words of the changelog, and without them there is none."""
    made = with_section(CHANGES, "0.2.0", "2026-02-02")
    assert notes(made, "0.2.0") == "### Added\n\n- A thing.\n"
    assert notes(made, "0.1.0") == "The first.\n"
    with pytest.raises(ValueError, match=r"no section for 0\.3\.0"):
        notes(made, "0.3.0")


def test_the_version_of_the_package_has_its_notes() -> None:
    """CHANGELOG.md has a section for this version."""
    assert notes(CHANGELOG.read_text(), __version__)


def test_a_release_gives_names_its_version() -> None:
    """Lines without a version get it, and all others stay."""
    assert with_version("0.1.0 flag a\nnext flag b\n", "0.2.0") == "0.1.0 flag a\n0.2.0 flag b\n"


def test_a_released_version_has_its_tables_and_its_names() -> None:
    """Each version in the changelog has a folder of tables, and only lines of these versions are more than `next`."""
    versions = released(CHANGELOG.read_text())
    assert {path.name for path in DIRECTORY.iterdir()} >= set(versions)
    assert {line.split()[0] for line in STABLE.read_text().splitlines()} - {"next"} <= set(versions)


def test_the_package_is_for_the_python_of_the_image() -> None:
    """Its dependencies are those that are pinned for the image, so it asks for the same Python."""
    (pinned,) = re.findall(r"--python-version ([\d.]+)", (CHECKOUT / "tox.ini").read_text())
    control = (FILES / "control").read_text()
    major, minor = PYTHON.split(".")
    assert pinned == PYTHON
    assert f"python3 (>= {PYTHON}), python3 (<< {major}.{int(minor) + 1})" in control


def test_the_package_depends_on_the_programs_of_its_scripts() -> None:
    """A Debian without `passwd` lacks groupadd, which the script after the installation calls."""
    assert "groupadd" in (FILES / "postinst").read_text()
    (depends,) = re.findall(r"^Depends: (.*)", (FILES / "control").read_text(), re.MULTILINE)
    assert "passwd" in depends.split(", ")


def test_a_candidate_has_the_address_of_the_project() -> None:
    """The image's label gets the address of pyproject.toml, whatever it was."""
    text = "version=0.1.0 \\\n    org.opencontainers.image.source=https://old.invalid \\\n"
    assert with_address(text) == text.replace("https://old.invalid", URL)


def test_the_tools_of_a_release_are_pinned_by_hash() -> None:
    """A release installs nothing by pip but this checkout and packages of lists with hashes."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(CHECKOUT / "tox.ini")
    installs = [line for line in tox["testenv:release"]["commands_pre"].splitlines() if " pip install " in line]
    lists = [line.split()[-1] for line in installs if "--require-hashes" in line]
    assert lists == ["examples/deploy/build-requirements.txt", "tools/release/requirements.txt"]
    assert [line.split()[-2:] for line in installs if "--require-hashes" not in line] == [
        ["--editable", "{tox_root}/conformance"]
    ]
    assert "deps" not in tox["testenv:release"]
    for each in lists:
        pinned = re.findall(
            r"^([a-z][\w.-]*)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", (CHECKOUT / each).read_text(), re.MULTILINE
        )
        assert {"build", "hatchling"} & set(pinned)
