"""Which call runs on which worker, in which batch, and when; pure: facts in, actions out."""
