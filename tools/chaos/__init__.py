"""Soak and chaos: the agent as a process, faults at random for minutes, and connections that must work meanwhile.

`python -m tools.chaos --minutes 30`, as root, or `tox run -e chaos`.  It prints its seed.  The same seed has the same
faults and the same changes of objects in the same order, while their timing is the machine's.

cluster.py   the objects, how they change at random, and the allowed outcomes of each connection at each moment
traffic.py   connections all the time, each held against these outcomes
watcher.py   samples of the verdicts, which mustn't be well for long while connections go wrong
faults.py    the faults, a function for each
agent.py     the agent's process, with a disk of its own
session.py   a run: changes, traffic and faults together, and the comparison at the end
"""
