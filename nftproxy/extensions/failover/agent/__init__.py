"""The part of failover that asks the kernel and probes endpoints."""
