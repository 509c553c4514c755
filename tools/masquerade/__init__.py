"""Measure the connections that masquerading loses: `python -m tools.masquerade`, as root.

Real clients make new connections at a steady rate to two real pods whose servers close first, by turns directly and
through a Service, with each of nft's ways to masquerade.  Each run has its own network, so that no run is affected by
leftovers of another run.

client.py      asks at a steady rate, and counts the outcomes
server.py      answers, and closes first
scene.py       the network, the rules, and a run in it
counters.py    the kernel's counters of a run
"""
