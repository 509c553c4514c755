"""The part of least connections that asks the kernel."""
