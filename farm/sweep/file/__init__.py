"""A sweep's HDF5 file and its journal: writing, locking, recovery and reading.

`store.py` writes them, `reading.py` reads them, and `recovery.py` rebuilds the file after a crash.
"""
