"""The worker's end of the wire: `host.py` runs the calls that arrive over the line of `line.py`."""
