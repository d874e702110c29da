"""Building blocks of reports: one HTML page with facts, tables and figures.

`page.py` builds the page; `scatter.py` and `plotting.py` draw its figures.
"""
