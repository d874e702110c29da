"""Workers: `local/` runs them on this machine, `batch/` submits jobs for them.

Commands and server use `local/supervisor.py`; a farm has `own_workers.py`, `batch/elastic.py`, or
both.
"""
