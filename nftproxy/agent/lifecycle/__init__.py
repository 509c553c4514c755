"""The start and the end of an agent, and its neighbours on the node."""
