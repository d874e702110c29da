"""The order in which a sweep submits its points: mixed first, then longest first.

`submission.py` keeps the order; `neighbours.py` guesses run times; `given.py` has the costs that
users give.
"""
