"""The Grafana dashboard of examples/monitoring, written from a table of its panels.

.venv/bin/python -m tools.monitoring
"""
