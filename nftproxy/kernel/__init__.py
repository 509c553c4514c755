"""What goes out: nftables, conntrack, network namespaces, sysctls."""
