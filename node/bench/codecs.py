"""`p2ptrain bench codecs`: what the compressors cost and keep.

Speeds are in gigabytes of fp32 input a second. A copy of the vector, timed in turns with each codec, reads and writes
at the speed of memory: what looks at every value and keeps an estimate up to date cannot be much faster. `naive` is the
same done plainly with torch. The vector is Gaussian, and larger than the caches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from node.bench import baseline, rivals
from node.bench.base import Column, Row, Summary, filled, left_out
from node.bench.on_vectors import FP32_BYTES, GIGA, OnVectors
from node.bench.timing import Taken, Work, in_turns, threads
from p2ptrain import compress
from p2ptrain.compress import Compressor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BITS = 8
SIDES = ("encode", "decode")

VARIANTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "int4-uniform": ("int4", {"format": "uniform"}),
    "int4-e3m0": ("int4", {"format": "e3m0"}),
    "topk-1/64-2bit": ("topk", {"ratio": 1 / 64, "value_bits": 2}),
    "topk-0.8%-2bit": ("topk", {"ratio": 0.008, "value_bits": 2}),
}
"""Settings that are measured beside each member's own: those of Streaming DiLoCo and SparseLoCo among them."""

COLUMNS = (
    Column(key="compressor", title="compressor"),
    Column(key="bits", title="size", unit="bit", digits=3),
    Column(key="error", title="error", unit="of x^2", digits=4),
    Column(key="encode_gb_s", title="encode", unit="GB/s", digits=2),
    Column(key="encode_gb_cpu_s", title="encode", unit="GB/cpu s", digits=2, spare=True),
    Column(key="encode_copies", title="encode", unit="copies", digits=1),
    Column(key="naive_encode", title="naive", unit="times", digits=1),
    Column(key="hivemind_encode", title="hivemind", unit="times", digits=1),
    Column(key="decode_gb_s", title="decode", unit="GB/s", digits=2),
    Column(key="decode_gb_cpu_s", title="decode", unit="GB/cpu s", digits=2, spare=True),
    Column(key="decode_copies", title="decode", unit="copies", digits=1),
    Column(key="naive_decode", title="naive", unit="times", digits=1),
    Column(key="hivemind_decode", title="hivemind", unit="times", digits=1),
)


@dataclass(frozen=True, kw_only=True)
class Codecs(OnVectors):
    """A measurement of every compressor named, on one vector."""

    compressors: Sequence[str]
    name: str = "codecs"

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one: a row a compressor."""
        x_d = torch.randn(self.numel, generator=torch.Generator().manual_seed(self.seed))
        for name in self.compressors:
            try:
                member, settings = VARIANTS.get(name, (name, {}))
                codec = compress.get(member, **settings)
            except ValueError as error:
                self.refused[name] = str(error)
                continue
            with threads(self.threads):
                row = _row(codec, name, x_d, self.rounds)
            yield {"compressor": name, **row, "numel": self.numel, "threads": self.threads, "seed": self.seed}

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return tables of these rows."""
        copies = [float(row["copy_gb_s"]) for row in rows if isinstance(row["copy_gb_s"], float)]
        notes = [
            f"copy: {max(copies, default=0.0):.1f} GB/s of fp32; copies: how many of them fit in the time",
            "cpu s: of all threads together, while they run: on a loaded machine, what a free core would do",
            "naive and hivemind: how many times as long as ours the plain torch version and theirs take",
            *rivals.absent("hivemind"),
            *left_out(self.refused),
        ]
        title = f"Codecs, {self.numel:,} parameters, {self.place}"
        return [Summary(title=title, columns=filled(COLUMNS, rows), rows=rows, notes=notes)]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows on an empty figure: encode and decode of each, and the copy."""
        axes = figure.add_subplot()
        places = range(len(rows))
        for offset, (key, label) in enumerate((("encode_gb_s", "encode"), ("decode_gb_s", "decode"))):
            speeds = [float(str(row[key])) for row in rows]
            axes.barh([place + 0.4 * offset for place in places], speeds, height=0.4, label=label)
        axes.axvline(max((float(str(row["copy_gb_s"])) for row in rows), default=1.0), color="grey", label="copy")
        axes.set_yticks([place + 0.2 for place in places], [str(row["compressor"]) for row in rows])
        axes.set_xscale("log")
        axes.set_xlabel("GB of fp32 a second")
        axes.legend()


def _row(codec: Compressor, name: str, x_d: torch.Tensor, rounds: int) -> dict[str, object]:
    numel, size = x_d.numel(), FP32_BYTES * x_d.numel()
    payload = codec.encode(x_d)
    kept_d = codec.decode(payload, numel)
    copy_d = torch.empty_like(x_d)
    works: dict[str, Work] = {
        "copy": partial(copy_d.copy_, x_d),
        "encode": partial(codec.encode, x_d),
        "decode": partial(codec.decode, payload, numel),
        **_others(name, x_d),
    }
    taken = in_turns(partial(copy_d.copy_, x_d), works, rounds=rounds)
    return {
        "bits": round(BITS * len(payload) / numel, 4),
        "error": round(float((x_d - kept_d).square().sum() / x_d.square().sum()), 5),
        "copy_gb_s": round(size / taken["copy"].seconds / GIGA, 3),
        **{f"{side}_gb_s": round(size / taken[side].seconds / GIGA, 3) for side in SIDES},
        **{f"{side}_gb_cpu_s": round(size / taken[side].cpu_seconds / GIGA, 3) for side in SIDES},
        **{f"{side}_copies": round(taken[side].ratio, 2) for side in SIDES},
        **{f"{who}_{side}": _against(taken, who, side) for who in ("naive", "hivemind") for side in SIDES},
    }


def _others(name: str, x_d: torch.Tensor) -> dict[str, Work]:
    works: dict[str, Work] = {}
    plain = baseline.codec(name)
    if plain is not None:
        works["naive_encode"] = partial(plain[0], x_d)
        works["naive_decode"] = partial(plain[1], plain[0](x_d), x_d.numel())
    theirs = rivals.hivemind_codec(name)
    if theirs is not None:
        works["hivemind_encode"] = partial(theirs[0], x_d)
        works["hivemind_decode"] = partial(theirs[1], theirs[0](x_d))
    return works


def _against(taken: dict[str, Taken], who: str, side: str) -> float | None:
    """How many times as long as ours; None where there is none."""
    other = taken.get(f"{who}_{side}")
    return None if other is None else round(other.ratio / taken[side].ratio, 2)
