"""Parts of a farm that only watch it, and answer what people ask about it.

Each part hears of workers and answers by the dispatcher's lists, adds rows to its snapshot, and
offers questions. `monitor.py` makes all of them.
"""
