"""Measurements between real processes over loopback: what the parent does (workers.py), and what its children do.

A child takes orders, one JSON object a line on stdin, and answers the same way on stdout. It ends when stdin does, so
that none outlives the program that started it. Times are of the system's monotonic clock, which is one for all
processes of a machine: an interval may begin in one and end in another.
"""
