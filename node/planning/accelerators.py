"""What a device computes, holds and draws: a table (accelerators.toml), or what was measured on one."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

MAIN_MEMORY = 0.0
"""`memory_bytes` of a device that has none of its own: a CPU."""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One device that trains."""

    name: str
    peak_flops: float
    """A second, dense, in the type that training uses."""
    memory_bytes: float
    """0: main memory."""
    watts: float
    mfu: float
    """Share of the peak that training reaches (model FLOPs utilization)."""
    mfu_is_assumed: bool
    source: str

    @property
    def flops(self) -> float:
        """Return the floating point operations a second that training reaches."""
        return self.peak_flops * self.mfu


@cache
def accelerators() -> dict[str, Accelerator]:
    """Return the devices of the table by name."""
    text = (resources.files("node.planning") / "accelerators.toml").read_text(encoding="utf-8")
    return {
        name: Accelerator(
            name=name,
            peak_flops=float(row["flops"]),
            memory_bytes=float(row["bytes"]),
            watts=float(row["watts"]),
            mfu=float(row["mfu"]),
            mfu_is_assumed=not str(row["source"]).startswith("measured"),
            source=str(row["source"]),
        )
        for name, row in tomllib.loads(text).items()
    }


def accelerator(name: str) -> Accelerator:
    """Return a device of the table. ValueError, which lists them, where there is none of that name."""
    table = accelerators()
    if name not in table:
        raise ValueError(f"there is no device {name!r} in the table; there are: {', '.join(sorted(table))}")
    return table[name]
