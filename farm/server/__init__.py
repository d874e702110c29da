"""Front doors: sockets around the protocols, nothing else."""
