"""Sweeps: evaluate a model at a table of points and write the results to one HDF5 file.

`api.py` has `farm.sweep`, `session.py` the sweep that it returns. They and the command line use
`design/` to plan, `run/` to run, `file/` to store, `sensitivity/` to rank parameters and `report/`
to report.
"""
