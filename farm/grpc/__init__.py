"""A gRPC server over HTTP/2 with the access rules of HTTP, independent of any service.

`server.py` serves the methods; they use the Call in `call.py`.
"""
