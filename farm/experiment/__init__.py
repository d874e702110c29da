"""Experiments: points asked for and outcomes reported, by AEPsych clients or by farm itself.

Servers and commands use `host.py`, which runs experiments on the event loop. A message takes this
path: `protocols/aepsych/service.py` frames it, and `session.py` checks it and returns the next
step; `messages.py` parses its values. `state/events.py` defines the facts, `state/journal.py`
stores them, and `state/experiment.py` is the state that results from them. Long-running work is
defined in `work.py` and done by `ask/generators.py` and `models/` in a process owned by
`ask/fitters.py`.
"""
