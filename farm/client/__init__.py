"""The Python client: `connect`, remote models, and an executor for them.

`connect` in `client.py` is the entry point. The names below are the public ones.
"""

from farm.client.client import Client, connect
from farm.client.executor import Executor
from farm.client.failures import FailedCalls, LostWorkers
from farm.client.names import call_id, chain
from farm.client.remote import RemoteModel

__all__ = [
    "Client",
    "Executor",
    "FailedCalls",
    "LostWorkers",
    "RemoteModel",
    "call_id",
    "chain",
    "connect",
]
