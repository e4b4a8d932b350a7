"""Measurements: `p2ptrain bench`. Their results, with predictions made before, are kept in docs/benchmarks.md.

One file a benchmark; base.py is what one is. `swarm/` simulates a swarm in one process, for those that learn;
`network/` runs real processes, for those that measure the network.
"""

from node.bench.aggregators import Aggregators
from node.bench.average import Average
from node.bench.base import Benchmark
from node.bench.blob import Blob
from node.bench.codecs import Codecs
from node.bench.robust import Robust
from node.bench.strategies import Strategies
from p2ptrain.registry import Registry

__all__ = ["BENCHMARKS", "Benchmark"]

BENCHMARKS: Registry[Benchmark] = Registry("benchmarks")
for _member in (Codecs, Aggregators, Strategies, Robust, Blob, Average):
    BENCHMARKS.register(_member.name)(_member)
