"""The socket on which commands ask the agent."""
