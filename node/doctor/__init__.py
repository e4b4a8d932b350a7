"""What is wrong with this machine and network for a node, and the fix: the checks behind `p2ptrain doctor`."""
