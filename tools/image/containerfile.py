"""Reads a Containerfile, as far as tests compare it with other files."""

from __future__ import annotations

import re
from typing import NamedTuple


class Line(NamedTuple):
    """An instruction of a Containerfile, and its arguments."""

    instruction: str
    text: str


Stage = list[Line]


def stages(text: str) -> list[Stage]:
    """Return the instructions of each stage, FROM first, without comments, and with continued lines joined."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    found: list[Stage] = []
    for line in kept.splitlines():
        if line.startswith("FROM"):
            found.append([])
        if line.strip():
            found[-1].append(Line(*line.split(maxsplit=1)))
    return found


def packages(stage: Stage) -> set[str]:
    """Return the packages that a stage installs with apt."""
    commands = "\n".join(line.text for line in stage if line.instruction == "RUN")
    lists: list[str] = re.findall(r"apt-get install((?: +[-\w.+]+)+)", commands)
    return {name for names in lists for name in names.split() if not name.startswith("-")}


def setting(stage: Stage, instruction: str) -> str:
    """Return the arguments of the last line of a stage with an instruction."""
    return [line.text for line in stage if line.instruction == instruction][-1]
