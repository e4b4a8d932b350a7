"""tests/vectors/codecs.json: the code, and the plain readers of the same forms, decode it bit for bit."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from reference_codecs import READERS

from p2ptrain import compress
from p2ptrain.compress import PayloadError
from p2ptrain.training.flat import vector_bytes

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "codecs.json").read_text(encoding="utf-8"))


def named(case: dict[str, Any]) -> str:
    return " ".join([case["codec"], *map(str, case.get("options", {}).values()), case.get("what", "")]).strip()


@pytest.mark.parametrize("case", VECTORS["good"], ids=named)
def test_payloads_are_decoded_bit_for_bit(case: dict[str, Any]) -> None:
    payload, numel = bytes.fromhex(case["payload"]), case["d"]
    values = bytes.fromhex(case["values"])
    assert vector_bytes(compress.get(case["codec"]).decode(payload, numel)) == values
    assert READERS[case["codec"]](payload, numel) == list(struct.unpack(f"<{numel}f", values))


@pytest.mark.parametrize("case", VECTORS["bad"], ids=named)
def test_bad_payloads_are_refused_with_their_reason(case: dict[str, Any]) -> None:
    with pytest.raises(PayloadError) as caught:
        compress.get(case["codec"]).decode(bytes.fromhex(case["payload"]), case["d"])
    assert caught.value.reason == case["reason"]
