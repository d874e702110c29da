"""Reports and figures of sweeps.

`report.py` writes a report, with the figures of `figures.py`.
"""
