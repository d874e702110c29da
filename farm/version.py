"""The version of farm, read by packaging, the command line and provenance records."""

__version__ = "0.2.0"
