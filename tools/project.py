"""The checkout, and the project's address, which pyproject.toml alone has."""

from __future__ import annotations

import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
URL: str = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
IS_KNOWN = not URL.endswith(".invalid")
"""False until a forge has the project: the placeholder is a name that RFC 2606 reserves."""
MAINTAINER = f"The nftproxy authors <maintainers@{URL.split('/')[2]}>"
