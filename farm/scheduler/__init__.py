"""Decides which call runs on which worker, in which batch, and when.

The dispatcher uses `core.py`: facts in, actions out, which `actions.py` defines; `state.py` has the
data. All modules are pure: the time is an argument.
"""
