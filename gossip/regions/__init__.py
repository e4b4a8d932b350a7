"""Regions of one swarm: each is a mesh of its own, and tells the others its model now and then.

Members of a region are each other's neighbours, and follow each other's updates. Between regions models travel, and no
updates: every few rounds some members of each region, drawn anew each time, publish the region's model for the members
of the regions beside it. A swarm whose members name no region has one, and publishes nothing.
"""
