"""Sweeps: evaluate a model at a table of points and write the results to one HDF5 file.

`api.py` has `farm.sweep`; it and the command line use `design/` to plan, `run/` to run, `file/` to
store, `sensitivity/` to rank parameters and `report/` to report.
"""
