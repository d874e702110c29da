"""Which parameters of a sweep decide an output, by the methods of SALib."""
