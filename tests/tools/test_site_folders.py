"""The site has a page for each example."""

from __future__ import annotations

from tools.site.folders import ROOT, folder_page


def test_an_example_is_a_page() -> None:
    """The page shows the configuration, the manifests and the rules of an example, each under its name."""
    example = ROOT / "examples" / "cluster-ip"
    page = folder_page(example)
    assert page.startswith("# cluster-ip\n")
    names = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert names == sorted(str(each.relative_to(example)) for each in example.rglob("*") if each.is_file())
    for name in ("config.yaml", "expected.nft"):
        assert (example / name).read_text() in page
