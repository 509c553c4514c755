"""Says in words what becomes of a connection, and why: from the decisions that make the rules."""
