"""Record commands in a terminal, for the README: `python -m tools.recording`, as root, in ten seconds.

A node, its pods and clients outside are network namespaces (as in tools/demo.py), and an agent looks after the node.
The commands run there in turn, and their output becomes an animated SVG, docs/terminal.svg.  Only the
pauses are made up.
"""
