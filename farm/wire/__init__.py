"""farm's own messages, between dispatcher, workers and native clients (docs/messages.md).

Transports use `messages.py`; `arrays.py` encodes the arrays in them.
"""
