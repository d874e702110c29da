"""Transport within one machine: messages over a unix-domain socket in the run folder.

`listener.py` is the server's end; `line.py` carries messages at both ends.
"""
