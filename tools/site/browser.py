"""Looks at the site in site/ with Debian's Chromium: `python -m tools.site.browser`, after `mkdocs build`.

Each page is shown in a frame that is as wide as a laptop's window, and in a frame as wide as a phone's.  A table or a
picture that is wider than its frame's text is an error.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from tools.debian.packages import install
from tools.site.folders import ROOT

SITE = ROOT / "site"
WIDTHS = (1280, 390)
"""A laptop's window and a phone's, in pixels."""
NEEDED = {"chromium": "chromium"}
BROWSER = ("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
HARNESS = "harness.html"
PATIENCE = 900.0
"""Seconds for all pages."""
PAGE = """<!DOCTYPE html>
<body></body>
<script>
const found = [];
async function look(page, width) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.sandbox = "allow-same-origin"; frame.src = page;  // without scripts
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const inside = frame.contentDocument;
  const wide = (kind, box, text) => found.push({page, width, kind, by: Math.round(box), text});
  for (const table of inside.querySelectorAll("article table")) {
    const text = table.closest(".md-content__inner").getBoundingClientRect();
    const by = Math.max(table.getBoundingClientRect().right, table.scrollWidth + text.left) - text.right;
    if (by > 1) wide("table", by, table.innerText.slice(0, 60));
  }
  for (const image of inside.querySelectorAll("article img")) {
    const by = image.getBoundingClientRect().right - image.closest(".md-content__inner").getBoundingClientRect().right;
    if (by > 1) wide("picture", by, image.getAttribute("src"));
  }
  frame.remove();
}
(async () => {
  const pages = WIDTHS.flatMap(width => PAGES.map(page => [page, width]));
  const next = async () => { while (pages.length) await look(...pages.pop()); };
  await Promise.all([next(), next(), next(), next()]);
  await fetch("/", {method: "POST", body: JSON.stringify(found)});
})();
</script>
"""


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
        str(path.relative_to(site)) for path in site.rglob("*.html") if path.name not in ("404.html", HARNESS)
    )


class _Server(ThreadingHTTPServer):
    """Serves a folder on the loopback, and takes what the script of the harness has found."""

    daemon_threads = True

    def __init__(self, site: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(site)))
        self.found: queue.Queue[bytes] = queue.Queue()


class _Handler(SimpleHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """Take the result."""
        self.server.found.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def overflows(site: Path, names: Iterable[str], widths: Iterable[int] = WIDTHS) -> list[Overflow]:
    """Return what is wider than its page in some pages of a site.

    Raises:
        queue.Empty: the browser has no result within `PATIENCE`.
    """
    text = PAGE.replace("WIDTHS", json.dumps(list(widths))).replace("PAGES", json.dumps(list(names)))
    (site / HARNESS).write_text(text)
    with _Server(site) as server, tempfile.TemporaryDirectory(prefix="nftproxy-browser-") as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [*BROWSER, f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}/{HARNESS}"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return [Overflow(**each) for each in json.loads(server.found.get(timeout=PATIENCE))]
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
            (site / HARNESS).unlink()


def main() -> str | None:
    """Return a line for each table or picture that is too wide, None if there is none."""
    install(NEEDED)
    found = overflows(SITE, pages(SITE))
    return "\n".join(f"{each.page} at {each.width}: {each.kind} by {each.by}: {each.text!r}" for each in found) or None


if __name__ == "__main__":
    sys.exit(main())
