"""The same vector gives the same bytes, and they the same vector: in any process, by any number of threads."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from p2ptrain import compress
from p2ptrain.compress import PayloadError

NAMES = ["none", "fp16", "bf16", "int8", "int4", "q2", "sign1", "topk"]
NUMEL = 3 * (1 << 16) + 1234
"""Several chunks of work, and an incomplete one."""


@pytest.fixture(params=[2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def awkward() -> torch.Tensor:
    """Gaussian but for ties, zeros, a huge and a denormal stretch: each takes another way through some codec."""
    x_d = torch.from_numpy(np.random.default_rng(0).standard_normal(NUMEL).astype(np.float32))
    x_d[5000:20_000] = (x_d[5000:20_000] * 2).round()
    x_d[20_000:40_000] = 0.0
    x_d[50_000:60_000] *= 1e30
    x_d[90_000:95_000] *= 1e-42
    return x_d


def digests() -> dict[str, str]:
    """Of each codec's first payload and of what it decodes to."""
    found = {}
    for name in NAMES:
        codec = compress.get(name)
        payload = codec.encode(awkward())
        decoded_d = codec.decode(payload, NUMEL)
        found[name] = hashlib.blake2b(payload + decoded_d.numpy().tobytes()).hexdigest()
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    assert torch.get_num_threads() == 1
    return digests()


def test_any_number_of_threads_gives_the_same(threads: int, expected: dict[str, str]) -> None:
    assert torch.get_num_threads() == threads
    assert digests() == expected


@pytest.mark.slow
def test_another_process_gives_the_same(expected: dict[str, str]) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "3"}
    result = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(result.stdout) == expected


@pytest.mark.parametrize("name", NAMES)
def test_where_a_vector_lies_in_memory_does_not_matter(name: str) -> None:
    """Vector units take what is not aligned in other steps."""
    x_d = awkward()[:70_001]
    room_d = torch.zeros(x_d.numel() + 3)
    room_d[3:] = x_d
    payload = compress.get(name).encode(x_d)
    assert compress.get(name).encode(room_d[3:]) == payload
    shifted = memoryview(b"\0" + payload)[1:]
    decoded_d = compress.get(name).decode(payload, x_d.numel())
    assert torch.equal(compress.get(name).decode(shifted, x_d.numel()), decoded_d)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_see_its_neighbours(name: str) -> None:
    """A part that begins with a chunk of topk's, alone, comes out as it does within the whole."""
    x_d = awkward()
    whole_d = compress.get(name).decode(compress.get(name).encode(x_d), NUMEL)
    for start, end in ((0, 4096), (16_384, 24_576), (49_152, 65_536), (1 << 17, NUMEL)):
        part_d = compress.get(name).decode(compress.get(name).encode(x_d[start:end]), end - start)
        assert torch.equal(part_d, whole_d[start:end])


@pytest.mark.parametrize("name", ["none", "fp16", "bf16", "topk"])
def test_what_is_refused_is_refused_by_any_number_of_threads(name: str, threads: int) -> None:
    x_d = awkward()
    payload = bytearray(compress.get(name).encode(x_d))
    payload[-3000:] = b"\xff" * 3000
    reasons = []
    for count in (threads, 1):
        torch.set_num_threads(count)
        with pytest.raises(PayloadError) as refused:
            compress.get(name).decode(bytes(payload), NUMEL)
        reasons.append(str(refused.value))
    assert reasons[0] == reasons[1]


if __name__ == "__main__":
    print(json.dumps(digests()))
