"""Experiments: points asked for and outcomes told, by clients of AEPsych or by farm itself.

The path of one message: `server/aepsych.py` frames it, `session.py` checks it (`messages.py` knows
what its values mean) and says what is to be done, `events.py` are what has happened and
`journal.py` keeps them, `experiment.py` is the state that they make; what takes a while is
`work.py`, done by `generators.py` and `models/` in a process that `fitters.py` has, and `host.py`
brings these together on the event loop.
"""
