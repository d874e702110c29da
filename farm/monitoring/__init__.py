"""Parts that only watch a farm at work; `Monitor` puts them together.

No call depends on them, and each costs a call little.
"""
