"""What users see of the agent's speed, measured against the test API server: `python -m tests.bench`, as root.

cluster.py    the objects of a cluster of any size, as the API has them
world.py      a scratch node with an API server and the agent, each a process of its own
listener.py   hears every commit in the node's namespace
changes.py    the kinds of single changes, written and timed
figures.py    what was measured, by name
targets.py    what was promised, and how far it is met
"""
