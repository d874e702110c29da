"""Running models: load them, run calls on them, and report errors; independent of transports.

`loader.py` loads the models that a user specifies, and `runner.py` runs calls on them.
"""
