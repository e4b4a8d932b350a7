"""Scenarios of thousands of nodes: the same learning rules, rounds and rings, without their protocol."""
