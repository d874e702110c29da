"""The source of the next points: generators, and the processes that fit surrogates.

`experiment/host.py` uses `fitters.py`, which runs `execute.py` in a process for each experiment.
"""
