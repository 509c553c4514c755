"""Counts how far features reach into the proxy."""
