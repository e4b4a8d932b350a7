"""The transport over real networks, by py-libp2p. libp2p is imported here and nowhere else."""
