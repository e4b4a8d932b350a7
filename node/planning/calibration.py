"""What was measured on a machine, for a plan and a simulation to take in place of tables: one JSON file.

`p2ptrain bench calibrate` writes it, `p2ptrain plan --calibration` and `p2ptrain simulate --calibration` read it. Every
number is this machine's own, a median or a mean; nothing in it comes from a peer. Times are in seconds, rates of
vectors in values a second of one core.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, ClassVar, Final, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

VERSION: Final = 4
LARGEST_FILE: Final = 1 << 20
"""Bytes of a calibration that are read: one has 2,000."""
SLOWEST: Final = "topk"
"""The codec whose rates one without any is given."""
LOSSLESS: Final = 1e8
"""Values a second of the stage `lossless`: 1 to 16 ns a parameter (docs/methods.md)."""
STAGES: Final[Mapping[str, float]] = {"lossless": LOSSLESS, "rotated": 0.5e9, "demo": 0.06e9, "randomk": 0.6e9}
"""Values a second of a stage, by the copies that docs/methods.md says it takes, at 1.3e9 a copy. `warmup`: nothing."""


EVALUATED: Final = 256
"""Examples of the evaluation that is timed: the default of `train.eval_examples`."""

USUAL_SIZE: Final = "nano"
"""Of a byte-lm where none is named."""

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
    mean_s: Positive
    """Above the median where cores are shared: some steps wait for their turn."""
    cpu_s: Positive
    """Mean seconds of a core, of all threads together. Below the mean on the clock where cores are shared."""
    count: Number
    processes: Number
    """Trainers that stepped at the same time, a process each: these shared the cores."""
    evaluation_s: Positive
    """Of an evaluation on EVALUATED examples, as many at once."""


@dataclass(frozen=True, kw_only=True)
class CallTimes:
    """What each call of a strategy takes beside what grows with the model, in seconds of a core."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    encode_s: NotNegative
    decode_s: NotNegative
    aggregate_s: NotNegative


@dataclass(frozen=True, kw_only=True)
class SwarmRounds:
    """Rounds of nodes that trained on this machine at the same time, by their own logs."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    members: Number
    inner_steps: Number
    rounds: Number
    steps: Positive
    """Mean of a round: more than `inner_steps` where exchanges are longer than these."""
    round_s: Positive
    """Mean."""
    round_sigma: NotNegative
    """Of a lognormal distribution: how a round's steps differ from another's."""
    exchange_s: NotNegative
    """Mean time until a quorum's updates were there."""
    work_s: NotNegative
    """Mean time of an encoding and of an averaging, waiting included."""

    def with_another(self, other: "SwarmRounds") -> "SwarmRounds":
        """Return the means of this and another swarm, of as many nodes and steps."""
        means = {
            key: (getattr(self, key) + getattr(other, key)) / 2
            for key in ("steps", "round_s", "round_sigma", "exchange_s", "work_s")
        }
        return replace(self, **means)


@dataclass(frozen=True, kw_only=True)
class SwarmTiming:
    """How nodes on this machine compute beside each other, so that a simulation of the same rounds takes as long."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    rounds: SwarmRounds
    """What was measured."""
    step_s: Positive
    """Mean seconds of a step, beside what rounds take."""
    round_sigma: NotNegative
    """Of the lognormal factor that a round's training is drawn with."""
    crowding: NotNegative
    """Seconds that a second of a core takes on the clock, beside training."""
    wake_s: NotNegative
    """Until an event loop comes to what has arrived: the mean."""


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
    calls: CallTimes
    verify_s: NotNegative
    """Of one signed broadcast."""
    loopback_bits_s: Positive | None = None
    """Through libp2p, to another process of this machine."""
    swarm: SwarmTiming | None = None
    """None: none was run, or there was one trainer."""
    threads: Number = 1

    @property
    def flops(self) -> float:
        """Return the floating point operations a second that a trainer reached."""
        return self.step.flops / self.step.median_s

    @property
    def crowding(self) -> float:
        """Return the seconds of training that a second of a core takes from it: as a swarm's rounds were measured, else
        by what steps take on the clock, so that what else runs on the machine counts. 0 where each trainer had a core
        of its own, and one to spare."""
        if self.step.processes * self.threads < self.cores:
            return 0.0
        if self.swarm is not None:
            return self.swarm.crowding
        return max(1.0, self.threads * self.step.mean_s / self.step.cpu_s)

    def to_json(self) -> str:
        """Return it as a file's text."""
        return json.dumps({"p2ptrain_calibration": VERSION, **asdict(self)}, indent=1, allow_nan=False) + "\n"


def task_words(task: Mapping[str, object]) -> str:
    """Return a task of a file of settings in words, by which a calibration knows it: `byte-lm nano`, `digits`."""
    size = task.get("size", USUAL_SIZE) if task["name"] == "byte-lm" else ""
    return f"{task['name']} {size}".strip()


def read_calibration(path: Path) -> MachineCalibration:
    """Return what a file says. ValueError, in one line, for one that is no calibration."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"{path} is too large for a calibration")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        make = f"; make one with p2ptrain bench calibrate --out {path}" if isinstance(error, FileNotFoundError) else ""
        raise ValueError(f"{path} cannot be read: {error.strerror}{make}") from None
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
