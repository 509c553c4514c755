"""Traces that other programs leave in the kernel."""
