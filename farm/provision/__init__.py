"""Workers: `local/` runs them on this machine, `batch/` submits jobs for them.

Commands and server use `local/supervisor.py`; an elastic farm adds `batch/elastic.py`.
"""
