"""What strategies draw for extensions: a module for each, and the list, as in nftproxy/extensions/."""
