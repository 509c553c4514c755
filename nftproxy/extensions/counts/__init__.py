"""Counts of the connections of each Service."""
