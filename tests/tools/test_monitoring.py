"""The dashboard of examples/monitoring, by Grafana's own types of a dashboard."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tools.monitoring.dashboard import FILE


def test_grafana_knows_each_field_of_the_dashboard() -> None:
    """Grafana's SDK reads the dashboard, and writes each of its fields with the same value."""
    register_default_plugins()
    given = json.loads(FILE.read_text())
    assert given["panels"]
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
    assert _of_same_shape(written, given) == given


def _of_same_shape(written: Any, given: Any) -> Any:
    """Return what was written without the fields that weren't given: the SDK writes defaults, too."""
    if isinstance(given, dict) and isinstance(written, dict):
        return {name: _of_same_shape(each, given[name]) for name, each in written.items() if name in given}
    if isinstance(given, list) and isinstance(written, list):
        return [_of_same_shape(*pair) for pair in zip(written, given, strict=True)]
    return written
