"""The report of a sweep: an interactive page about the model, then about the farm.

`report.py` writes it. `shown.py` chooses its points; `columns.py`, `fields.py`, `ranking.py` and
`operation.py` make its data; the scripts in `page/` draw it.
"""
