"""The scheduler with a clock: accepts calls, splits long ones, sends tasks to workers.

Endpoints use the interface in `backend.py`; the server and the transports use `dispatcher.py`.
"""
