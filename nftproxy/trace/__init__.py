"""Trace a packet through a throw-away copy of the rules, step by step.

`node` is a network namespace with interfaces through which packets enter, and `scene` loads a copy of the rules there.
The kernel reports the rules that a packet meets.  `sentences` turns the report into steps, each with the rule's comment
as its sentence, and `outcome` tells the packet's fate.  `tracing` compares both with an explanation.
"""
