"""Payloads of each codec and what they stand for, and payloads that must be refused, for make_vectors.py."""

from collections.abc import Iterator
from typing import Any

import torch

from p2ptrain import compress
from p2ptrain.training.flat import vector_bytes

PARAMETERS = 1100
"""More than one block of most codecs, and a last one that is narrower."""
PLAIN = ("none", "fp16", "bf16", "int8", "int4", "q2", "sign1", "topk")
FORMS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, {}) for name in PLAIN),
    *(("int4", {"format": levels}) for levels in ("uniform", "e3m0")),
    *(("topk", {"value_bits": bits}) for bits in (2, 5)),
)
ONE = "0000803f"
NAN, MINUS_ONE = "0000c07f", "000080bf"


def good() -> list[dict[str, object]]:
    """A payload of each form, and the fp32 values that it stands for, little-endian."""
    x_d = torch.tensor([(place * 7919 % 2003 - 1001) / 1000 for place in range(PARAMETERS)])
    made: list[dict[str, object]] = []
    for name, options in FORMS:
        payload = compress.get(name, **options).encode(x_d)
        values = vector_bytes(compress.get(name).decode(payload, PARAMETERS))
        made.append({"codec": name, "options": options, "d": PARAMETERS, "payload": payload, "values": values})
    return made


def bad() -> Iterator[dict[str, object]]:
    """Payloads for vectors of d parameters that no receiver applies."""
    for codec, d, what, payload, reason in (
        ("none", 1, "a byte short", "000080", "wrong_shape"),
        ("none", 1, "a byte long", ONE + "00", "wrong_shape"),
        ("none", 1, "not a number", NAN, "nonfinite"),
        ("fp16", 1, "infinite", "007c", "nonfinite"),
        ("q2", 4, "empty", "", "wrong_shape"),
        ("q2", 4, "a scale that is no number", NAN + "00", "nonfinite"),
        ("q2", 4, "a scale below 0", MINUS_ONE + "00", "malformed"),
        ("q2", 4, "a scale above the largest", "ffff7f7f00", "nonfinite"),
        ("int8", 2, "a scale above the largest", "ffff7f7f0000", "nonfinite"),
        ("sign1", 8, "a byte short", ONE, "wrong_shape"),
        ("int4", 2, "levels that do not exist", f"03{ONE}00", "malformed"),
        ("topk", 5, "a k of 0", f"0000{ONE}0240005f81", "malformed"),
        ("topk", 5, "places that do not rise", f"6606{ONE}0420005f81", "malformed"),
        ("topk", 5, "a place beyond the vector", f"6606{ONE}0250005f81", "malformed"),
        ("topk", 5, "a byte short", f"6606{ONE}0240005f", "wrong_shape"),
    ):
        yield {"codec": codec, "d": d, "what": what, "payload": bytes.fromhex(payload), "reason": reason}
