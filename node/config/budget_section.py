"""The section `[budget]`: how much of this machine a node may take.

A size is written as `6GiB`, `500 MB` or a number of bytes. What is not set is not bounded.
"""

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from node.config.config_errors import from_validation
from node.config.toml_source import Raw
from node.system.byte_sizes import byte_size

MOST_CORES: Final = 1 << 16
"""More than any machine has, and few enough for the kernel's quota. Chosen."""

Bytes = Annotated[int, BeforeValidator(byte_size), Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """How much of this machine the node may take; no member needs to know. A start chooses what it moves to the disk,
    and how many examples go through the model at a time, so that all fits. Where it cannot fit, it says so and ends."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    memory: Bytes | None = None
    """Main memory, such as 6GiB. Held by a cgroup where this user may make one; else it is watched."""
    gpu_memory: Bytes | None = None
    """Memory of the GPU, such as 4GiB: torch takes no more, and a batch that does not fit goes through the model in
    parts."""
    disk: Bytes | None = None
    """What the node's folder may take, such as 20GiB: fewer checkpoints are kept where all would not fit, and a
    shorter log of events."""
    cpu: Annotated[float, Field(gt=0, le=MOST_CORES)] | None = None
    """Cores, such as 2 or 0.5: the threads of torch, and a cgroup's quota where this user may make one."""

    @property
    def is_set(self) -> bool:
        """Return whether anything is bounded."""
        return any(each is not None for each in (self.memory, self.gpu_memory, self.disk, self.cpu))


def budget_in(raw: Raw) -> BudgetConfig:
    """Return the budget in raw settings, which need no torch to be read. Raises UsageError."""
    try:
        return _Sections.model_validate(raw).budget
    except ValidationError as error:
        raise from_validation(error, {"budget": [each.name for each in fields(BudgetConfig)]}, raw) from None


class _Sections(BaseModel):
    """All sections, of which only one is read."""

    model_config = ConfigDict(extra="ignore")

    budget: BudgetConfig = BudgetConfig()
