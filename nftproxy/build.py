"""The commit that this program was built from, which the file commit.txt has.

`git archive` writes the hash and the subject into it (.gitattributes), and hatch_build.py does so if a wheel is built
from a checkout.  In a checkout it has placeholders.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from nftproxy.version import __version__

FILE = Path(__file__).with_name("commit.txt")
CHECKOUT = "checkout"
"""The commit of a program that runs from a checkout, and not from a build of it."""
UNKNOWN = "unknown"
SHORT = 12
"""Characters of a hash that are shown."""
DIRTY = "-dirty"


class Build(NamedTuple):
    """The commit of a program, and whether that commit is a release.

    Attributes:
        commit: the hash, with "-dirty" if files differed from the commit, or `CHECKOUT`, or `UNKNOWN`.
        is_release: True if the commit made this version.  No other commit may have its number.
    """

    commit: str
    is_release: bool

    @property
    def label(self) -> str:
        """The commit in the metric `nftproxy_build_info`."""
        return self.commit if self.is_release or self.commit in (CHECKOUT, UNKNOWN) else f"{self.commit}-unreleased"

    @property
    def text(self) -> str:
        """The version and the commit, for people."""
        commit = f"commit {self.commit}" if self.commit != CHECKOUT else "a checkout"
        return f"{__version__} ({commit})" if self.is_release else f"{__version__} (unreleased, {commit})"


def build_of(text: str) -> Build:
    """Return the build that the text of the file describes."""
    if text.startswith("$"):
        return Build(CHECKOUT, is_release=False)
    commit, _, subject = text.strip().partition("\n")
    digits, dash, _ = commit.partition("-")
    is_release = subject == f"Release {__version__}" and not dash
    return Build(digits[:SHORT] + (DIRTY if dash else "") if digits else UNKNOWN, is_release)


def this_build() -> Build:
    """Return this program's build."""
    try:
        return build_of(FILE.read_text())
    except OSError:
        return Build(UNKNOWN, is_release=False)
