"""From facts to nft text, generations and their differences: pure."""
