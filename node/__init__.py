"""The runtime of p2ptrain: one node's process, and the commands that start, watch and measure nodes."""
