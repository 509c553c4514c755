"""Soak and chaos: the agent as a process, faults at random for minutes, and connections that must work meanwhile.

`python -m tools.chaos --minutes 30`, as root, or `tox run -e chaos`.  It prints its seed; the same seed has the same
faults and the same changes of objects in the same order, while their timing is the machine's.

cluster.py   the objects, how they change at random, and what each connection may become at each moment
traffic.py   connections all the time, each held against that
faults.py    what goes wrong, one function each
agent.py     the agent's process, with a disk of its own
session.py   one run: changes, traffic and faults together, and what is compared at the end
"""
