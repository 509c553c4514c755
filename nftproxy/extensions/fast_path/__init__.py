"""The fast path of established connections."""
