"""ZeroMQ transport between machines: the listener, the lines of workers and clients, the socket.

`listener.py` is the server's end, `line.py` the end of workers and clients.
"""
