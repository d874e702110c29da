"""Jobs of a batch system that host workers, scaled to the demand.

The server uses `elastic.py`, the autoscaler; `kinds.py` reads the file that configures it, and
`allocation.py` identifies the job that a process runs in.
"""
