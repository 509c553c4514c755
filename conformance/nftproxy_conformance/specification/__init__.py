"""The expected outcomes of connections, and their reasons: docs/semantics.md as code, independent of the rules."""
