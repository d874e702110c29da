"""Request bodies: bounded collection, memory files for long ones, and reader processes.

Endpoints call `reading.py`, connections `body.py`, `held.py` and `unpacking.py`; the server starts
the processes of `readers.py`. This package is independent of the protocols.
"""
