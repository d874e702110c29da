"""farm's own HTTP interface under /farm: many points in one request, status, /docs.

`service.py` serves it; `client.py` is the client half that `farm.connect` uses.
"""
