"""Running models: load them, run calls on them, and report errors.

`loader.py` loads the models that a user specifies, and `runner.py` runs calls on them, whatever
brings these; `host/` takes them from the line of a dispatcher.
"""
