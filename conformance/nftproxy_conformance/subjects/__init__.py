"""Subjects of trials: a node with the rules that templates render, or a node that runs a proxy as a process."""
