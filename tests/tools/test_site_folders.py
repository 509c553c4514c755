"""The site has a page for each example."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nftproxy import __version__
from tools import project
from tools.site import folders
from tools.site.folders import ROOT, folder_page, title_of
from tools.site.tables import labelled


def test_an_example_is_a_page() -> None:
    """The page shows the configuration, the manifests and the rules of an example, each under its name."""
    example = ROOT / "examples" / "cluster-ip"
    page = folder_page(example)
    assert page.startswith("# cluster-ip\n")
    names = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert names == sorted(str(each.relative_to(example)) for each in example.rglob("*") if each.is_file())
    for name in ("config.yaml", "expected.nft"):
        assert (example / name).read_text() in page


def test_a_page_is_called_by_its_title() -> None:
    """A link whose text is a file's name has the title of that page."""
    assert title_of(ROOT / "docs" / "cli.md") == "The command line"


def test_each_page_names_the_version_and_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is below each page.  A link to edit the page is there once the project has an address."""
    config = SimpleNamespace(copyright=None, repo_url=None, edit_uri=None, theme={"features": []})
    monkeypatch.setattr(project, "IS_KNOWN", False)
    assert folders.on_config(config).repo_url is None
    assert config.copyright == f"nftproxy {__version__}"
    monkeypatch.setattr(project, "IS_KNOWN", True)
    folders.on_config(config)
    assert (config.repo_url, config.edit_uri) == (project.URL, "edit/main/")
    assert config.theme["features"] == ["content.action.edit"]


def test_cells_have_the_names_of_their_columns() -> None:
    """Each cell but the first of its row names its column, unless that has no name.  Text outside of tables stays."""
    head = "<tr><th>a</th><th><code>b</code> &amp; c</th><th></th></tr>"
    table = f"<table>{head}<tr><td>1</td><td>2</td><td>3</td></tr></table>"
    assert labelled(f"<td>{table}") == "<td>" + table.replace("<td>2", '<td data-column="b &amp; c">2')
