"""Connections that are tried on a subject's node, and compared with the specification."""
