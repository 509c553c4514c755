"""Writes the dashboard."""

from tools.monitoring.dashboard import FILE, dashboard_text

FILE.write_text(dashboard_text())
