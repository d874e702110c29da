"""Facts of this machine, as its kernel reports them."""
