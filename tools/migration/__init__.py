"""The cost of a node's change of its service proxy for connections, which `tox run -e race` tries.

A real node with two pods goes from kube-proxy's rules (those in examples/migrate) to nftproxy and back, by the commands
of docs/migrate.md, while real clients connect all the time and keep other connections.

traffic.py     clients, and the fate of their connections
switch.py      the node, the steps, and the connections of each step
"""
