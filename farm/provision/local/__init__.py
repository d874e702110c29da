"""Model processes on this machine: start, watch, restart and end them.

Other packages use `supervisor.py`, for processes and, by `group.py`, for groups of MPI ranks; the
processes run `process.py` and `rank.py`.
"""
