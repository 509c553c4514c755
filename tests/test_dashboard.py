"""The dashboard of examples/monitoring, by Grafana's own types of a dashboard."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.conftest import CHECKOUT

DASHBOARD = json.loads((CHECKOUT / "examples" / "monitoring" / "dashboard.json").read_text())
CHARTS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_grafana_knows_each_field_of_the_dashboard() -> None:
    """Grafana's SDK reads the dashboard, and writes each of its fields with the same value."""
    register_default_plugins()
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert _of_same_shape(written, DASHBOARD) == DASHBOARD


def test_each_chart_is_of_our_agents_on_the_chosen_nodes() -> None:
    """Each query asks the chosen data source for the containers of agents, on the nodes that are chosen at the top."""
    assert len(CHARTS) == 18
    targets = [target for chart in CHARTS for target in chart["targets"]]
    assert [each["expr"] for each in targets if 'container="nftproxy", node=~"$node"' not in each["expr"]] == []
    assert {each["datasource"]["uid"] for each in (*CHARTS, *targets)} == {"$datasource"}


def test_no_two_panels_overlap() -> None:
    """Each panel has its own number and its own cells of the grid, which is 24 wide."""
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in (panel["gridPos"],)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert {x for x, _ in cells} == set(range(24))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def _of_same_shape(written: Any, given: Any) -> Any:
    """Return what was written without the fields that weren't given: the SDK writes defaults, too."""
    if isinstance(given, dict) and isinstance(written, dict):
        return {name: _of_same_shape(each, given[name]) for name, each in written.items() if name in given}
    if isinstance(given, list) and isinstance(written, list):
        return [_of_same_shape(*pair) for pair in zip(written, given, strict=True)]
    return written
