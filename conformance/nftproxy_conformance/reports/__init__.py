"""The results of trials, as text and as JSON."""
