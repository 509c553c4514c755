"""Judge a node before and after a migration: from observations to findings, without any I/O."""
