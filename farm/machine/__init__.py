"""This machine: its addresses, memory, files, processors, users, and programs that farm starts.

Each module stands alone; other packages use `listener.py`, `open_files.py` and `private.py` most.
"""
