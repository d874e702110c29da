"""An experiment's events, the state that results from them, and their journal.

`experiment.py` applies the events of `events.py`; `trials.py` reads the trials for reports.
"""
