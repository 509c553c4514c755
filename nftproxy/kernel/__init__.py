"""The I/O that goes out: nftables, conntrack, network namespaces, sysctls."""
