"""Neighbours of nftproxy on a node: firewalls, runtimes, routers and tables of others.

`python -m tools.neighbours firewalld` boots a virtual machine for each neighbour and runs `trial` there: connections go
as docs/semantics.md says beside the neighbour, and again after the neighbour's own reload.  A neighbour is a script,
which beside.sh runs on the node.
"""
