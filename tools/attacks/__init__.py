"""Attacks of tenants and of users of the node on a real agent."""
