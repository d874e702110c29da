"""The closed loop: experiments that a farm runs by itself.

The server uses `runs.py`, the command line `run.py`; `evaluators.py` has the farms that they use.
"""
