"""Checks of the environment, this machine, a farm and the batch system; nothing is changed.

`examine.py` has the list of checks and carries them out, each within a time limit.
"""
