"""Crash-safe files: a lock, a journal of checksummed records, durable writes.

Sweeps and experiments use `journal.py` and `lock.py`.
"""
