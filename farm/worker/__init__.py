"""Beside the model: load it, run calls on it, name what went wrong; no line to the farm here."""
