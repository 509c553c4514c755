"""Closed ports and answered pings at addresses of Services."""
