"""Which parameters of a sweep decide an output, by the methods of SALib.

`analysis.py` reads a sweep file and has the result; `methods.py` calls SALib.
"""
