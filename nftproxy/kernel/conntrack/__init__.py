"""Connection tracking: sweeps of stale UDP flows, lookups, settings."""
