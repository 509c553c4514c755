"""The process on each node: its loop, health, metrics and servers."""
