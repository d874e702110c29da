"""Connections that carry calls from the dispatcher to workers, and answers back.

The server uses `peers.py` and the listeners in `stream/` and `zmq/`, workers and native clients
`dial.py`; `connection.py` has the addresses and keys for them.
"""
