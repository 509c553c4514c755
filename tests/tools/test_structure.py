"""The table of tools/structure counts the features that the package has."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from nftproxy.policy.facts import PortFacts
from tools.structure.__main__ import FEATURES, features, rows

CHECKOUT = Path(__file__).resolve().parents[2]


def test_each_extension_is_counted() -> None:
    """The table has a row for each extension's folder, and words for no other."""
    folders = {
        path.name for path in (CHECKOUT / "nftproxy" / "extensions").iterdir() if (path / "__init__.py").exists()
    }
    assert set(FEATURES) <= set(features(CHECKOUT)) == folders


def test_the_table_counts_fields_and_files() -> None:
    """The fields of facts, and the files of a plain change, are those of this checkout."""
    found = dict(rows(CHECKOUT))
    assert found["fields of PortFacts"] == str(len(structs.fields(PortFacts)))
    entered = (CHECKOUT / "tests" / "system" / "plain_change" / "entered.txt").read_text()
    assert f"every change enters {found['a plain change, before the commit']}\n" in entered
