"""The part of localhost that listens and relays."""
