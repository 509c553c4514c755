"""What masquerading loses, measured: `python -m tools.masquerade`, as root.

Real clients make new connections at a steady rate to two real pods whose servers close first, by turns directly and
through a Service, with each way that nft has to masquerade.  Each run has a network of its own, so that no run meets
what another one has left behind.

client.py      asks at a rate, and counts what becomes of it
server.py      answers, and closes first
scene.py       the network, the rules, and one run in it
counters.py    what the kernel counts meanwhile
"""
