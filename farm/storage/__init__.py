"""Crash-safe files: a lock, a journal of checksummed records, durable writes.

Sweeps, experiments and records use `journal.py` and `lock.py`.
"""
