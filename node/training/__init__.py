"""A node that trains: the synchronization loop, the inner loop, joining, checkpoints, compute executors."""
