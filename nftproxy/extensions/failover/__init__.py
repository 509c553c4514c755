"""Failover from endpoints that are silent, that refuse, or that are gone."""
