"""The closed loop: experiments that a farm runs by itself.

The server uses `runs.py`, the command line `run.py`; `evaluators.py` has the farms that they use.
`seed_files.py` reads initial trials from a user's files, for the command line only.
"""
