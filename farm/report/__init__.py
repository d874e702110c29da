"""Building blocks of reports: one HTML page with facts, tables and figures.

`page.py` builds a page with pictures, which `scatter.py` draws, and one that draws its own figures
with the library in `vendored/`.
"""
