"""nftables over netlink, without libnftables."""
