"""The pages of documentation have few words, and don't grow unseen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
MOST = 38_000
"""The most words of README.md, CONTRIBUTING.md and docs/ together, without `GENERATED`, as `wc -w` counts them.

A bar of a table is a word, too.  At fb9df9db they had 42,816.
"""
GENERATED = {"docs/fields.md"}
"""The reference that tests write from the parser's answers."""


def words() -> Mapping[str, int]:
    """Return the words of each page, the longest page first."""
    pages = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *(CHECKOUT / "docs").rglob("*.md")]
    counted = {str(page.relative_to(CHECKOUT)): len(page.read_text().split()) for page in pages}
    listed = {name: number for name, number in counted.items() if name not in GENERATED}
    return dict(sorted(listed.items(), key=lambda each: (-each[1], each[0])))


def test_the_pages_together_have_few_words() -> None:
    """All pages together have at most the committed number of words."""
    report = "\n".join(f"{number:6,} {name}" for name, number in words().items())
    assert sum(words().values()) <= MOST, f"more than {MOST:,} words:\n{report}"
