"""Node ports at localhost."""
