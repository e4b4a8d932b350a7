"""What a check found, and what it was given to look at."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gossip.core.api import RunInfo
from node.config.schema import Config
from node.config.sections import NetworkConfig, NodeConfig
from node.swarm.credentials import Credentials
from p2ptrain.training import Trainer
from p2ptrain.training.logits_trainer import LogitsTrainer
from p2ptrain.training.preflight import Preflight

Level = Literal["ok", "unknown", "warning", "problem"]
"""`unknown`: could not be found out. `problem`: a node does not run, or not as it is told to."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the page: what was examined, what was found, and what to do (empty where nothing needs doing)."""

    check: str
    level: Level
    seen: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as `--json` prints it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How this machine's training is measured, and what its owner says of it."""

    for_s: float = 5.0
    """Seconds of steps: some dozen of small models, and no long wait. Chosen."""
    neighbours: int | None = None
    """Whom it sends to; None: as many as `network.degree` allows."""
    round_s: float | None = None
    """Of the swarm's rounds; None: of this machine's own."""
    watts: float | None = None
    """That the machine takes while it trains; None: what its own counters say."""
    price_kwh: float | None = None
    """In any currency; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a node would be started with. `learning` is None for a bootstrap node, which trains nothing."""

    network: NetworkConfig
    node: NodeConfig
    learning: Config | None
    run_dir: Path
    credentials: Credentials | None = None
    """Of a member of a private swarm, whose peers speak with nobody else; None where the swarm is open."""
    unasked: str = ""
    """Why peers cannot be asked; empty where they can."""
    measuring: Measuring | None = None
    """How training is measured; None: not at all."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What building the configured model has shown."""

    parameters: int
    device: str
    run: RunInfo
    trainer: Trainer | None = None
    """The one that was built: its steps may be measured."""
    logits: LogitsTrainer | None = None
    """What shares its logits, where the run's members do."""
    trial: Preflight | None = None
    """What trying a task of the user's own has shown; None for a built-in one."""

    frozen_bytes: int = 0
    """Of parameters that are not trained, such as those of the base model under adapters."""

    @property
    def shared(self) -> int:
        """Return how many values members share: parameters, or logits."""
        return self.parameters if self.logits is None else self.logits.numel

    @property
    def kept_bytes(self) -> int:
        """Return what stays in memory beside what is trained: frozen parameters, and, where that was measured, what
        one batch keeps for its backward pass."""
        return self.frozen_bytes + (0 if self.trial is None else self.trial.kept_bytes)


def unless_one_is_fine(findings: Iterable[Finding]) -> list[Finding]:
    """Lower the level of failed alternatives to a warning where one alternative works: one way to an end is enough."""
    found = list(findings)
    if not any(it.level == "ok" for it in found):
        return found
    return [replace(it, level="warning") if it.level == "problem" else it for it in found]
