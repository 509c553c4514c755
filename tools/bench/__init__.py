"""What users see of the agent's speed, measured against the test API server: `python -m tools.bench`, as root.

rows.py        what can be measured, and in which order
cluster.py     the objects of a cluster of any size, as the API has them
world.py       a scratch node with an API server and the agent, each a process of its own (processes.py)
listener.py    hears every commit in the node's namespace
dumps.py       counts what the agent has the kernel list
changes.py     the kinds of single changes, written and timed
latency.py startup.py loads.py connections.py offline.py     rows about the agent as a process
stages.py shapes.py                                          rows about its parts, and about another shape of rules
figures.py     what was measured, by name
targets.py     what was promised, beside it
report.py plot.py                                            tables and picture for docs/
quick.py       what CI asserts
bounds.py      what one Service costs at its limits, and one a hundred times as large, by itself
forwarding.py  what the forwarder of node ports at localhost costs, by itself
"""
