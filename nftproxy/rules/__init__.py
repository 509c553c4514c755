"""Nft text from facts, generations of rules, and the differences between them.  All of it is pure."""
