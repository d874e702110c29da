"""Running a sweep: submit points as fast as the farm accepts them, and show the progress.

`run.py` runs a sweep after `in_flight.py` has tested the model; `display.py` shows the progress.
"""
