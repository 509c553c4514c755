"""From events to tables that the kernel holds: first load, changes, repair, quarantine."""
