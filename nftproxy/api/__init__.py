"""From bytes and answers of the API to values: pure."""
