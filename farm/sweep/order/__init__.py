"""The order in which a sweep submits its points: mixed first, then longest first.

`submission.py` keeps the order; `neighbours.py` guesses run times; `costs.py` has the costs that
are known before.
"""
