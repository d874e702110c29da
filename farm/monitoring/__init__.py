"""Parts that watch a farm and remember what people ask about, such as failures and run times.

They add functions to the lists of the dispatcher and data to its snapshot, change nothing, and cost
a call little. `monitor.py` puts them together.
"""
