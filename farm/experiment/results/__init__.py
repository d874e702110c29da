"""The best points, exports, reports and figures of an experiment.

The command line uses `best.py`, `export.py` and `report.py`.
"""
