"""HTTP/1.1: a server for endpoints that answer whole requests, access rules, and a client.

`server.py` and `client.py` are the two ends; endpoints use `request.py`, `access.py` and `asgi.py`.
The package knows no protocol above HTTP. `turns.py` and `connections.py` serve other connections
too.
"""
