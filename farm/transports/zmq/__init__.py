"""ZeroMQ transport between machines: `listener.py` is the server's end, `line.py` the peers'."""
