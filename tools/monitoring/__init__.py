"""Draw the Grafana dashboard of examples/monitoring: `python -m tools.monitoring`, as root, in two minutes.

Three agents meet faults on nodes that are network namespaces, while Debian's Prometheus scrapes them.  Prometheus
answers each query of the dashboard, and matplotlib draws the answers at the places of the panels.
"""
