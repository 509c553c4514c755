"""The version of this package.  The build reads it here."""

__version__ = "0.1.0"
