"""The speed of the agent as its users see it, measured against the test API server: `python -m tools.bench`, as root.

figures.py    the measured figures by name, tables, stopwatches, progress
cluster.py    the objects of a cluster of any size, as the API has them
rig.py        a scratch node with an API server and the agent, each a process of its own
listener.py   receives every commit in the node's namespace
dumps.py      counts the kernel's lists that the agent asks for
changes.py    the kinds of single changes, made and timed
startup.py loads.py   rows about the agent as a process
report.py plot.py     tables and a picture for docs/
work.py       counts the work of the pure parts
quick.py      the assertions of CI

The benches whose figures aren't measured again are in the commits that the pages name.
"""
