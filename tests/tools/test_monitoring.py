"""The picture of the dashboard of examples/monitoring."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from nftproxy_conformance.lab import obstacle

from tests.support.processes import CHECKOUT
from tools.monitoring.scene import DASHBOARD

PICTURE = CHECKOUT / "docs" / "dashboard.svg"
MOST_BYTES = 250_000
"""The most bytes that a page has to fetch for it, a tenth of that compressed."""


def shown(picture: Path) -> set[str]:
    """The texts of a picture."""
    return {"".join(each.itertext()) for each in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}


def test_the_picture_in_the_docs_is_of_this_dashboard() -> None:
    """docs/dashboard.svg has the title of each panel and row, and a page can fetch it."""
    titles = {each["title"] for each in json.loads(DASHBOARD.read_text())["panels"]}
    assert titles - shown(PICTURE) == set()
    assert PICTURE.stat().st_size < MOST_BYTES


@pytest.mark.slow
@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
@pytest.mark.timeout(400)
def test_a_picture_can_be_made(tmp_path: Path) -> None:
    """Three agents with faults give each query an answer, and the first row shows the nodes, the change and the drops.

    If a query has none, the command names it and fails.
    """
    file = tmp_path / "dashboard.svg"
    command = [sys.executable, "-m", "tools.monitoring", str(file), "40"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    names = {
        "well",
        "no answer",
        "starting",
        "node-c differs",
        "node-b",
        "node-b, waiting",
        "no_endpoint",
        "not_admitted",
    }
    assert names - shown(file) == set()
