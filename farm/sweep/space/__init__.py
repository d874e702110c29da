"""The space of a sweep's points: parameters, correlations, conditions and constraints.

`grammar.py` reads the texts of the command line, `parameters.py` has the distributions, and
`space.py` brings all together.
"""
