"""Parts that watch a farm and remember what people ask about: what failed, and which workers died.

They add functions to the lists of the dispatcher and data to its snapshot, and change nothing.
`monitor.py` puts them together.
"""
