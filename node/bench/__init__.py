"""Measurements: `p2ptrain bench`. Their results, with predictions made before, are kept in docs/benchmarks.md.

One file a benchmark; base.py is what one is, and benchmarks.py all of them by name. `swarm/` simulates a swarm in one
process, for those that learn; `network/` runs real processes, for those that measure the network.
"""
