"""What was measured on a machine, for a plan and a simulation to take in place of tables: one JSON file.

`p2ptrain bench calibrate` writes it, and `p2ptrain plan --calibration` reads it. Every number is a median of this
machine's own; nothing in it comes from a peer. Times are in seconds, rates of vectors in values a second of one core.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, ClassVar, Final, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

VERSION: Final = 1
LARGEST_FILE: Final = 1 << 20
"""Bytes of a calibration that are read: one has 2,000."""
SLOWEST: Final = "topk"
"""The codec whose rates one without any is given."""
LOSSLESS: Final = 1e8
"""Values a second of the stage `lossless`: 1 to 16 ns a parameter (docs/methods.md)."""
STAGES: Final[Mapping[str, float]] = {"lossless": LOSSLESS, "rotated": 0.5e9, "demo": 0.06e9, "randomk": 0.6e9}
"""Values a second of a stage, by the copies that docs/methods.md says it takes, at 1.3e9 a copy. `warmup`: nothing."""


_STRICT: ConfigDict = {"extra": "forbid", "strict": True}

Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number: TypeAlias = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """A step of one task on this machine."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    task: str
    """`byte-lm nano`, say."""
    parameters: Number
    batch: Number
    length: Number
    flops: Positive
    """Of the step, by the plan's own count."""
    median_s: Positive
    low_s: Positive
    """The tenth percentile."""
    high_s: Positive
    """The ninetieth percentile."""
    count: Number
    processes: Number
    """Trainers that stepped at the same time, a process each: these shared the cores."""


@dataclass(frozen=True, kw_only=True)
class WorkRates:
    """What work beside training takes."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    encode: dict[str, Positive]
    decode: dict[str, Positive]
    aggregate: Positive
    bytes_a_transfer: NotNegative
    """Beside each copy of a payload."""
    bytes_a_second: NotNegative
    """To each neighbour, whatever is trained: announcements again, hellos."""
    share_of_bytes: NotNegative
    seconds_a_transfer: NotNegative
    """Of a core, of the event loop, for a payload out and one in."""
    measured: bool = False

    def encode_rate(self, compressor: str) -> float:
        """Return the values a second that a codec encodes, its stages included."""
        return _composed(self.encode, compressor)

    def decode_rate(self, compressor: str) -> float:
        """Return the values a second that it decodes."""
        return _composed(self.decode, compressor)


@dataclass(frozen=True, kw_only=True)
class MachineCalibration:
    """All of a file."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    cores: Number
    device: str
    made: str
    """When, in UTC."""
    step: StepTiming
    rates: WorkRates
    verify_s: NotNegative
    """Of one signed broadcast."""
    loopback_bits_s: Positive | None = None
    """Through libp2p, to another process of this machine."""
    loopback_rtt_s: NotNegative | None = None
    threads: Number = 1

    @property
    def flops(self) -> float:
        """Return the floating point operations a second that a trainer reached."""
        return self.step.flops / self.step.median_s

    @property
    def crowding(self) -> float:
        """Return the trainers that share a core: 0 where each had one of its own, and one to spare."""
        shared = self.step.processes * self.threads / self.cores
        return shared if shared >= 1 else 0.0

    def to_json(self) -> str:
        """Return it as a file's text."""
        return json.dumps({"p2ptrain_calibration": VERSION, **asdict(self)}, indent=1, allow_nan=False) + "\n"


def read_calibration(path: Path) -> MachineCalibration:
    """Return what a file says. ValueError, in one line, for one that is no calibration."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"{path} is too large for a calibration")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError):
        raise ValueError(f"{path} is no JSON: make one with p2ptrain bench calibrate --out {path}") from None
    if not isinstance(raw, dict) or raw.pop("p2ptrain_calibration", None) != VERSION:
        raise ValueError(
            f"{path} is no calibration of this release: make one with p2ptrain bench calibrate --out {path}"
        )
    try:
        return TypeAdapter(MachineCalibration).validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {where}: {first['msg'].lower()}") from None


@cache
def usual_rates() -> WorkRates:
    """Return the rates of the project's own machine, where nothing else is known."""
    raw = tomllib.loads((resources.files("node.planning") / "work_rates.toml").read_text(encoding="utf-8"))
    encode, decode = (
        {name: float(rate) for name, rate in raw[side].items() if name != "entry"} for side in ("encode", "decode")
    )
    network = raw["network"]
    return WorkRates(
        encode=encode,
        decode=decode,
        aggregate=float(raw["aggregate"]["values"]),
        bytes_a_transfer=float(network["bytes_a_transfer"]),
        bytes_a_second=float(network["bytes_a_second"]),
        share_of_bytes=float(network["share_of_bytes"]),
        seconds_a_transfer=float(network["seconds_a_transfer"]),
    )


def _composed(rates: Mapping[str, float], compressor: str) -> float:
    """A codec's own rate where it was measured; else its last part's and its stages', one after another."""
    if compressor in rates:
        return rates[compressor]
    *stages, last = compressor.split("+")
    if not stages and last in STAGES:  # alone it takes a default within
        stages, last = [last], {"rotated": "q2", "randomk": "int8"}.get(last, "topk")
    seconds = 1 / rates.get(last, rates.get(SLOWEST, usual_rates().encode[SLOWEST]))
    return 1 / (seconds + sum(1 / STAGES[stage] for stage in stages if stage in STAGES))
