"""Which parameters of a sweep decide an output, by the methods of SALib.

`analysis.py` reads a sweep file, `methods.py` calls SALib, and `ranking.py` has the result.
"""
