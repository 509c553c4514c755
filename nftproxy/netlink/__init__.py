"""Netlink's messages as bytes, in both directions.  No sockets: these are in `kernel` and `sources`."""
