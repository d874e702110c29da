"""The report of a sweep: an interactive page about the model, then about the farm.

`report.py` writes it, with the data about the farm. `columns.py` chooses its points and makes the
data about the model; the scripts in `page/` draw it.
"""
