"""Commands of batch systems that run jobs as processes of this machine, for tests."""
