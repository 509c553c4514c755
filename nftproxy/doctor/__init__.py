"""What `nftproxy doctor` finds: from facts about a node and its cluster to findings, without any I/O."""
