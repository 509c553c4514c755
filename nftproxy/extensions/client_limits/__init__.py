"""Limits and denied ranges for clients of a Service."""
