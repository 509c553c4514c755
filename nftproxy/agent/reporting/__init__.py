"""Metrics, health, Events."""
