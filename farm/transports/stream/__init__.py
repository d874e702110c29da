"""Transport for one machine: messages over a unix-domain socket in the run folder."""
