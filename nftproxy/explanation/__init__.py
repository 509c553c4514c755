"""Explain the outcome of a connection, and the reasons, from the decisions that make the rules."""
