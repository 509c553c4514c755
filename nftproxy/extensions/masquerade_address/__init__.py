"""The source of masqueraded connections."""
