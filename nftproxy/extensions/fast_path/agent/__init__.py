"""The part of the fast path that follows this machine's interfaces."""
