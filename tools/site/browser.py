"""Looks at the site in site/ with Debian's Chromium: `python -m tools.site.browser`, after `mkdocs build`.

Each page is shown in a frame that is as wide as a laptop's window, and in a frame as wide as a phone's.  A table or a
picture that is wider than its frame's text is an error.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tools.debian.packages import install
from tools.site.folders import ROOT

SITE = ROOT / "site"
WIDTHS = (1280, 390)
"""A laptop's window and a phone's, in pixels."""
NEEDED = {"chromium": "chromium"}
BROWSER = (
    "chromium",
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--allow-file-access-from-files",
    "--virtual-time-budget=10000000",  # milliseconds, which pass at once while nothing is loaded
    "--dump-dom",
)
HARNESS = Path(__file__).with_name("harness.html")
PATIENCE = 900.0
"""Seconds for all pages."""


class Overflow(NamedTuple):
    """Something that is wider than its page, in pixels."""

    page: str
    width: int
    kind: str
    by: int
    text: str


def pages(site: Path) -> list[str]:
    """Return the paths of the site's pages."""
    return sorted(
        str(path.relative_to(site)) for path in site.rglob("*.html") if path.name not in ("404.html", HARNESS.name)
    )


def overflows(site: Path, names: Iterable[str], widths: Iterable[int] = WIDTHS) -> list[Overflow]:
    """Return what is wider than its page in some pages of a site.

    Raises:
        subprocess.TimeoutExpired: the browser has not shown all pages within `PATIENCE`.
    """
    text = HARNESS.read_text().replace("[/* widths */]", json.dumps(list(widths)))
    harness = site / HARNESS.name
    harness.write_text(text.replace("[/* pages */]", json.dumps(list(names))))
    try:
        with tempfile.TemporaryDirectory(prefix="nftproxy-browser-") as profile:
            command = [*BROWSER, f"--user-data-dir={profile}", harness.resolve().as_uri()]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    finally:
        harness.unlink()
    (found,) = re.findall(r"<pre>(.*)</pre>", done.stdout, re.DOTALL)
    return [Overflow(**each) for each in json.loads(html.unescape(found))]


def main() -> str | None:
    """Return a line for each table or picture that is too wide, None if there is none."""
    install(NEEDED)
    found = overflows(SITE, pages(SITE))
    return "\n".join(f"{each.page} at {each.width}: {each.kind} by {each.by}: {each.text!r}" for each in found) or None


if __name__ == "__main__":
    sys.exit(main())
