"""What every rank of a model finds whose strategy's vectors lie in slices: `torchrun sliced_ranks.py OUT CUT`, read by
test_sliced_ranks.py, which has written the neighbours' messages."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sharded_ranks import Site
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from p2ptrain import aggregate, compress, jit
from p2ptrain.compress.payload_layout import encode_slices_of
from p2ptrain.sync import SyncConfig
from p2ptrain.sync.sliced_averaging import SlicedAveraging, unit_of
from p2ptrain.sync.sliced_vectors import LostSliceError
from p2ptrain.training.flat import vector_pieces
from p2ptrain.training.sharded_model import ShardedModel

PEERS = ("a", "b", "c")
ROUNDS = 3
CONFIG = SyncConfig(strategy="diloco", compressor="q2", aggregator="trimmed_mean", f=1, outer="average")


def model_of() -> nn.Sequential:
    """8 million parameters, in rows that no number of ranks divides."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2045, 2050), nn.Tanh(), nn.Linear(2050, 2046, bias=False), nn.Linear(2046, 3))


def sharded(cut: str) -> nn.Module:
    model, count = model_of(), dist.get_world_size()
    if cut == "tp":
        parallelize_module(model, init_device_mesh("cpu", (count,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    else:
        fully_shard(model)
    return model


def step(model: nn.Module, round_: int) -> None:
    """What stands for a round's training: the same of each value in whatever cut."""
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1 + 0.01 * (round_ + 1))


def digest(x_d: torch.Tensor) -> str:
    found = hashlib.blake2b(digest_size=16)
    for piece in vector_pieces(x_d):
        found.update(piece)
    return found.hexdigest()


def memory(key: str) -> int:
    """Bytes that /proc says of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise LookupError(key)


def warm_up() -> None:
    """Compile the loops of large vectors: a compiler takes more memory than the vectors here."""
    aggregate.get(CONFIG.aggregator, f=CONFIG.f)(torch.zeros(len(PEERS) + 1, jit.WORTH // (len(PEERS) + 1)))
    codec = compress.get(CONFIG.compressor)
    encode_slices_of(codec, jit.WORTH)
    codec.decode(codec.encode(torch.zeros(1 << 20)), 1 << 20)


def messages(out: Path, round_: int) -> list[bytes]:
    return [(out / f"{peer}-{round_}").read_bytes() for peer in PEERS]


def main() -> None:
    out, cut = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = sharded(cut)
    site = Site(model)
    found: dict[str, Any] = {"numel": site.shards.numel, "payloads": [], "rounds": []}
    strategy: list[SlicedAveraging] = []
    warm_up()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")

    def begin(shards: ShardedModel) -> None:
        shards.cut(unit_of(CONFIG))
        assert shards.slices is not None
        genesis_d = shards.vector()
        found["genesis"] = digest(genesis_d)
        strategy.append(SlicedAveraging(CONFIG, genesis_d, "own", shards.slices))
        for peer in PEERS:
            strategy[0].track(peer, None)

    site.led(begin)
    for round_ in range(ROUNDS):
        step(model, round_)

        def close(shards: ShardedModel, round_: int = round_) -> None:
            theta_d = shards.vector()
            found["payloads"].append(hashlib.blake2b(strategy[0].encode(theta_d, round=round_).payload).hexdigest())
            for peer, payload in zip(PEERS, messages(out, round_), strict=True):
                strategy[0].apply(peer, "q2", payload)
            result = strategy[0].aggregate_(theta_d, dict.fromkeys(PEERS, 0), round=round_)
            shards.add_(result.correction_d)
            found["rounds"].append([digest(result.anchor_d), result.consensus_distance, result.members])

        site.led(close)
        found["held"] = 0 if site.shards.part is None else site.shards.part.nbytes
    found["grown"] = memory("VmHWM") - before
    found["vector"] = site.led(lambda shards: digest(shards.vector()))
    if strategy:
        found["snapshot"] = hashlib.blake2b(strategy[0].snapshot(), digest_size=16).hexdigest()
        site.led(lambda shards: shards.load_(strategy[0].state_dict()["anchor"]))
    else:
        site.led(lambda shards: None)
    found["loaded"] = site.led(lambda shards: digest(shards.vector()))
    site.led(lambda shards: shards.cut(None))  # and whole again
    found["whole"] = site.led(lambda shards: digest(shards.vector()))
    found["ended"] = ended(strategy)
    found["lost"] = lost(site)
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads outlive the group, and may abort a process that ends


def ended(strategy: list[SlicedAveraging]) -> str:
    """What is said once the slices are let go of."""
    try:
        return "" if not strategy else str(strategy[0].snapshot())
    except LostSliceError as error:
        return str(error)


def lost(site: Site) -> str:
    """What the leader finds of a slice that fails."""
    site.led(lambda shards: shards.cut(unit_of(CONFIG)))
    if site.shards.slices is None:
        return ""
    try:
        site.shards.slices.one(1, "aggregate", {}, 0, {})
    except LostSliceError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
