"""The browser finds tables and pictures that are wider than their page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.site.browser import overflows, pages

PAGE = """<!DOCTYPE html>
<article><div class="md-content__inner" style="width: 300px">
<table><tr><td><div style="width: {width}px">cell</div></td></tr></table>
</div></article>
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium (tox run -e docs installs it)")
def test_a_table_that_is_too_wide_is_found(tmp_path: Path) -> None:
    """A table wider than the text is named with its page and the width of the window, and a narrow table isn't."""
    for name, width in (("narrow", 200), ("wide", 700)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(PAGE.format(width=width))
    assert pages(tmp_path) == ["narrow/index.html", "wide/index.html"]
    found = overflows(tmp_path, pages(tmp_path), widths=[390, 1280])
    assert sorted((each.page, each.width, each.kind, each.text) for each in found) == [
        ("wide/index.html", 390, "table", "cell"),
        ("wide/index.html", 1280, "table", "cell"),
    ]
    assert all(each.by > 390 for each in found)
    assert pages(tmp_path) == ["narrow/index.html", "wide/index.html"]
