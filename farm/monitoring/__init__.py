"""Parts that watch a running farm for its owner; they never change what it does.

The server makes one `monitor.py::Monitor`, which has a part for each kind of question.
"""
