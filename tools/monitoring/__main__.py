"""`python -m tools.monitoring [FILE] [SECONDS]`: writes the picture to a file, docs/dashboard.svg without one."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.support.processes import CHECKOUT
from tools.monitoring.picture import draw
from tools.monitoring.scene import DASHBOARD, record

SECONDS = 90


def main(file: str = str(CHECKOUT / "docs" / "dashboard.svg"), seconds: str = str(SECONDS)) -> str | None:
    """Draw, and return the queries without an answer, None if there is none."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    with tempfile.TemporaryDirectory() as directory:
        answers = record([each for panel in panels for each in panel.get("targets", ())], Path(directory), int(seconds))
    draw(panels, answers, Path(file))
    return "".join(f"no answer to {expr}\n" for expr, lines in answers.items() if not lines) or None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
