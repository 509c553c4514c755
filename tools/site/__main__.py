"""Copies the pages of the repository into build/pages, from where mkdocs reads them.

mkdocs reads all files below its folder and follows links, and a checkout may hold whole Debian trees.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.site.folders import ROOT

PAGES = ROOT / "build" / "pages"
STYLE = Path(__file__).with_name("narrow.css")
LISTED = ("*.md", "docs/", "examples/", ":!examples/python/", ":!tools/")
"""The files that the site has, as `git ls-files` takes them."""


def copy_pages() -> None:
    """Write the pages anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *LISTED]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # git lists a deleted file until the commit
            (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, PAGES / name)
    shutil.copy(STYLE, PAGES)


if __name__ == "__main__":
    copy_pages()
