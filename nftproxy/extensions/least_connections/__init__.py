"""Least connections: shares that follow the connections of endpoints."""
