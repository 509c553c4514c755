"""Algorithms and weights by which endpoints are chosen."""
