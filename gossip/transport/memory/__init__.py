"""A whole network inside one process: for tests and simulations, on any clock."""
