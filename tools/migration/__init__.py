"""What a node's change of its service proxy costs connections: `python -m tools.migration`, as root.

A real node with two pods goes from kube-proxy's rules (those in examples/migrate) to nftproxy and back, by the commands
of docs/migrate.md, while real clients connect all the time and others keep their connections.

traffic.py     clients, and what becomes of their connections
switch.py      the node, the steps, and who connected when
"""
