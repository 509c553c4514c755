"""The recording shows the output of commands, in a picture for any page."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from nftproxy_conformance.lab import obstacle

from tools.recording.__main__ import COMMANDS, PICTURE
from tools.recording.screen import COLUMNS, PROMPT, Screen, svg

CHECKOUT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 40_000
"""The most bytes that a page has to fetch for it."""


def shown(picture: str) -> list[list[str]]:
    """The lines of each screen of a picture."""
    groups = ElementTree.fromstring(picture).iter(f"{SVG}g")
    return [[text.text or "" for text in group.iter(f"{SVG}text")] for group in groups]


def test_screens_follow_each_other() -> None:
    """Each screen is seen for its time, in turn, and the marked screen stays where nothing may move."""
    picture = svg([Screen((f"{PROMPT}a",), 1), Screen((f"{PROMPT}a", "printed"), 3, stays=True)])
    assert shown(picture) == [[f"{PROMPT}a"], [f"{PROMPT}a", "printed"]]
    assert re.findall(r"([\d.]+)% { visibility: visible } ([\d.]+)%", picture) == [
        ("0.00", "25.00"),
        ("25.00", "100.00"),
    ]
    assert re.findall(r'class="(screen s.*?)"', picture) == ["screen s1", "screen s2 stays"]


def test_what_is_printed_is_only_text() -> None:
    """Markup, control characters and long lines are shown as text that fits."""
    picture = svg([Screen(("</text><script>\x1b[2J", "x" * 1000), 1)])
    (lines,) = shown(picture)
    assert lines == ["</text><script> [2J", "x" * (COLUMNS - 1) + "…"]


def test_the_recording_in_the_docs_is_of_these_commands() -> None:
    """docs/terminal.svg shows each command with its output, and is small."""
    picture = PICTURE.read_text()
    asked = list(dict.fromkeys(lines[0] for lines in shown(picture)))
    assert asked == [f"{PROMPT}nftproxy {command}" for command in COMMANDS]
    for command in COMMANDS:
        (_,) = (lines for lines in shown(picture) if lines[0].endswith(command) and len(lines) > 3)
    assert len(picture.encode()) < MOST_BYTES


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_a_recording_can_be_made(tmp_path: Path) -> None:
    """In its short form the script starts an agent, runs a command on the node, and writes the picture."""
    file = tmp_path / "terminal.svg"
    done = subprocess.run(
        [sys.executable, "-m", "tools.recording", "--short", file],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    asked, printed = shown(file.read_text())
    assert asked == [f"{PROMPT}nftproxy {COMMANDS[0]}"]
    assert printed[0] == asked[0]
    assert printed[-1] == PROMPT
    assert len(printed) > 5


LIVE = """
from tools.recording.stage import own_run_directory, stage
own_run_directory()
with stage() as node:
    node.until_it_runs(["status"])
    print("\\n".join(node.run(["explain", "203.0.113.7:443", "--from", "198.51.100.9", "--trace"])))
"""


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_a_node_with_an_agent_traces_what_its_kernel_holds() -> None:
    """Without manifests the agent plans the packets, which go through a copy of the rules in the node's kernel."""
    done = subprocess.run([sys.executable, "-c", LIVE], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1:]) == (0, ["  as explained"]), done.stderr
    assert "traced through a throw-away copy of what the kernel of this machine holds" in lines
    assert lines[-2] == "  => 10.1.0.6:8443, its source kept: 198.51.100.9"
