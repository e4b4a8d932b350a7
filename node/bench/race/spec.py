"""What all contestants of a race have in common: model, data, batch, steps, learning rate, evaluation. Plain data."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from p2ptrain.tasks.byte_lm.task import ByteLM
from p2ptrain.training.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class RaceSpec:
    """Everybody trains `hosts` copies of one byte-lm, each on its own shard, `steps` steps of `batch` windows."""

    hosts: int
    steps: int
    size: str = "nano"
    data: str | None = None
    """None: the text of Python's own standard library."""
    batch: int = 8
    learning_rate: float = 3e-3
    warmup_steps: int = 40
    seed: int = 0
    keep_every: int = 20
    """Steps between two models of the first host that are kept, and evaluated when the run is over."""
    eval_examples: int = 256

    def train(self, inner_steps: int = 1) -> TrainConfig:
        """Return the settings of training in rounds of `inner_steps` steps: `steps` in all, one thread."""
        return TrainConfig(
            rounds=self.steps // inner_steps,
            inner_steps=inner_steps,
            batch_size=self.batch,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            seed=self.seed,
            threads=1,
            device="cpu",
        )

    def task(self) -> ByteLM:
        """Return the task. TaskError where the data cannot be had."""
        return ByteLM(size=self.size, data=self.data)

    def to_json(self) -> str:
        """Return it as text, for the process of a host."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RaceSpec":
        """Return what `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """What a process of a rival is told on its command line."""

    spec: RaceSpec
    rank: int
    address: str
    """Of the first host."""
    own_address: str
    folder: Path
    """Of this host: its track, and the file that says that it is ready."""
    options: dict[str, Any]
    """The contestant's own."""

    def to_json(self) -> str:
        """Return it as text."""
        told = {name: getattr(self, name) for name in ("rank", "address", "own_address", "options")}
        return json.dumps({**told, "folder": str(self.folder), "spec": asdict(self.spec)})

    @classmethod
    def from_json(cls, text: str) -> "HostPlan":
        """Return what `to_json` wrote."""
        told = json.loads(text)
        return cls(**{**told, "folder": Path(told["folder"]), "spec": RaceSpec(**told["spec"])})
