"""Connection tracking: sweeps of stale flows, connections without an answer, and counts of connections."""
