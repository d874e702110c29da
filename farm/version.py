"""The version of farm; packaging, the command line and provenance read it here."""

__version__ = "0.1.0"
