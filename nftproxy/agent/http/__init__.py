"""The HTTP server of the agent, and the places where health and metrics are served."""
