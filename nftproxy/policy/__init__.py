"""Every decision about where a connection goes: pure."""
