"""Values that every stage may use: addresses, objects, events, settings, errors."""
