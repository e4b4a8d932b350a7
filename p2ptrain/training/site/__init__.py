"""A site: the ranks of one machine, or of a few, that train one model together and are one node of the swarm."""
