"""The part of the source of masqueraded connections that follows interfaces."""
