"""What the kernel does with one packet, step by step, in a throw-away copy of the rules.

`scene` is the copy: a node in a network namespace with the rules that a kernel holds or would get, and interfaces for
packets to come in by.  `steps` makes a way of what the kernel reports of a packet, and `words` has a sentence for each
step, by the names of chains, sets and maps in the templates.
"""
