"""The part of counts that reads the kernel."""
