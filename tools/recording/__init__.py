"""Records what operators see in a terminal, for the README: `python -m tools.recording`, as root; it takes ten seconds.

A node, its pods and clients outside are network namespaces (as in tools/demo.py), and an agent looks after the node.
The commands run there, one after the other, and what they print becomes an animated SVG, docs/terminal.svg.  Nothing in
it is made up but the pauses.
"""
