"""The Python client: `connect`, remote models, and an executor over them."""

from farm.client.client import Client, connect
from farm.client.executor import Executor
from farm.client.remote import RemoteModel

__all__ = ["Client", "Executor", "RemoteModel", "connect"]
