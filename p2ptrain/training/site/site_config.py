"""How the ranks of a site share out the work on one model: the `[site]` section."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from p2ptrain.tasks.base import TaskError

SCHEDULES: Final = ("1f1b", "interleaved")

STAGES_A_RANK: Final = {"1f1b": 1, "interleaved": 2}

FULL_PIPELINE: Final = 4
"""Micro-batches for each rank of a pipeline from which on its waiting while it fills and empties hardly counts (GPipe,
1811.06965)."""


class MeshShape(NamedTuple):
    """How many ranks there are in each dimension, outermost first: of a pipeline, replicas of each stage, shards of
    each replica, and ranks that compute each matrix of a shard together."""

    pipeline: int
    replicas: int
    shards: int
    tensor: int

    @property
    def data_ranks(self) -> int:
        """How many ranks of a stage have data of their own."""
        return self.replicas * self.shards


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    """What `torchrun ... -m p2ptrain node` does with its ranks. ValueError, with the field's name, on a value that
    cannot be."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    shard: int = 0
    """Ranks among which parameters, gradients and optimizer state are shared out (FSDP2). 0: all that `tensor` and
    `pipeline` leave. Where more remain than this, they are replicas of each other (HSDP)."""
    tensor: int = 1
    """Ranks that compute each matrix together (tensor parallelism, with the sequence shared out between the matrices).
    They belong within one machine, whose GPUs talk fast, and train on the same examples."""
    pipeline: int = 1
    """Ranks that compute the model's blocks one after another (pipeline parallelism). Each has a stage of the model;
    the micro-batches of a step follow each other through the stages, and activations alone travel between them."""
    pipeline_schedule: str = "1f1b"
    """`1f1b`: one stage for each rank, which goes forward and backward in turn. `interleaved`: two shorter stages for
    each, which wait less while the pipeline fills, and send twice as often."""
    micro_batches: int = 0
    """Micro-batches into which each pipeline cuts its part of a step. 0: at least 4 for each of its ranks, or as many
    as there can be."""
    activation_checkpointing: bool = False
    """Whether each block's activations are computed again in the backward pass, in place of being kept: a third more
    computing for far less memory."""
    offload: bool = False
    """Whether a GPU's part of the parameters, and of the optimizer's state, lies in its host's memory, where the
    optimizer works: a block at a time is on the GPU. For models that do not fit, and slower."""
    timeout_s: float = 120.0
    """Seconds after which a rank that does not answer is taken for hung, and the site ends. The longest that any
    collective of a step may take. Chosen."""

    def __post_init__(self) -> None:
        for name, least in (("shard", 0), ("tensor", 1), ("pipeline", 1), ("micro_batches", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.pipeline_schedule not in SCHEDULES:
            raise ValueError(f"pipeline_schedule must be one of {', '.join(SCHEDULES)}, not {self.pipeline_schedule!r}")
        if not math.isfinite(self.timeout_s) or self.timeout_s < 1:
            raise ValueError(f"timeout_s must be at least 1, not {self.timeout_s}")

    @property
    def needs_ranks(self) -> str:
        """The first setting, as `name=value`, that means nothing in one process; empty where there is none."""
        return next(self._several(), "")

    @property
    def stages(self) -> int:
        """Stages into which the model is cut."""
        return self.pipeline * STAGES_A_RANK[self.pipeline_schedule] if self.pipeline > 1 else 1

    def mesh(self, ranks: int) -> MeshShape:
        """Return how `ranks` are laid out. TaskError where they cannot be."""
        inner = self.tensor * self.pipeline
        shard = self.shard or max(1, ranks // inner)
        if ranks % (shard * inner):
            wanted = " and ".join(f"site.{each}" for each in self._several())
            raise TaskError(f"{ranks} ranks cannot be shared out by {wanted}: start a multiple of {shard * inner}")
        return MeshShape(self.pipeline, ranks // (shard * inner), shard, self.tensor)

    def micro_batch_count(self, batch_size: int, accumulation: int, ranks: int) -> int:
        """Return into how many micro-batches each pipeline cuts its part of a step, which has `accumulation` batches of
        `batch_size` examples. All micro-batches are equal, and none is of two batches. TaskError where that cannot
        be."""
        pipelines = self.mesh(ranks).data_ranks
        sharing = pipelines // math.gcd(pipelines, accumulation)
        if batch_size % sharing:
            raise TaskError(
                f"train.batch_size={batch_size} cannot be shared out evenly among {sharing} pipelines: take a multiple "
                f"of {sharing}, or a train.grad_accumulation that is one of {pipelines}"
            )
        examples, batches = batch_size // sharing, accumulation * sharing // pipelines
        counts = [batches * pieces for pieces in range(1, examples + 1) if not examples % pieces]
        counts = [count for count in counts if self._fills(count)]
        if not counts:
            few = f"at least {self.pipeline}" if self.pipeline_schedule == "1f1b" else f"a multiple of {self.pipeline}"
            raise TaskError(
                f"site.pipeline={self.pipeline} wants {few} as the number of equal micro-batches a step, and each "
                f"pipeline has {batches} x {examples} examples: take another train.batch_size or "
                "train.grad_accumulation"
            )
        if self.micro_batches and self.micro_batches not in counts:
            raise TaskError(
                f"site.micro_batches={self.micro_batches} does not fit: each pipeline can cut its {batches} x "
                f"{examples} examples a step into {', '.join(map(str, counts))}"
            )
        full = (count for count in counts if count >= FULL_PIPELINE * self.pipeline)
        return self.micro_batches or next(full, counts[-1])

    def _fills(self, count: int) -> bool:
        """Whether the schedule can be made for so many micro-batches."""
        return count >= self.pipeline and (self.pipeline_schedule == "1f1b" or not count % self.pipeline)

    def _several(self) -> Iterator[str]:
        """The settings, as `name=value`, that want several ranks."""
        named = ((name, getattr(self, name)) for name in ("shard", "tensor", "pipeline"))
        return (f"{name}={count}" for name, count in named if count > 1)
