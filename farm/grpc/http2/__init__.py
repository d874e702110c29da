"""The server's half of HTTP/2 without its sockets, for gRPC; it imports nothing else of farm.

README.md shows how it is used.
"""
