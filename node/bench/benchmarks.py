"""The benchmarks by name. Not in the package itself, which the processes that `network/` starts import as well."""

from node.bench.aggregators import Aggregators
from node.bench.average import Average
from node.bench.base import Benchmark
from node.bench.blob import Blob
from node.bench.calibrate import Calibrate
from node.bench.codecs import Codecs
from node.bench.gpu import Gpu
from node.bench.graphs import Graphs
from node.bench.metrics_cost import MetricsCost
from node.bench.quality.quality import Quality
from node.bench.race.race import Race
from node.bench.robust import Robust
from node.bench.strategies import Strategies
from p2ptrain.registry import Registry

__all__ = ["BENCHMARKS"]

BENCHMARKS: Registry[Benchmark] = Registry("benchmarks")
for _member in (
    Codecs,
    Aggregators,
    Strategies,
    Robust,
    Blob,
    Average,
    MetricsCost,
    Race,
    Gpu,
    Quality,
    Graphs,
    Calibrate,
):
    BENCHMARKS.register(_member.name)(_member)
