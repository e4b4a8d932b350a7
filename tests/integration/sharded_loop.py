"""Ranks of one sharded model in a swarm, for torchrun: `sharded_loop.py OUT PEER|- STEPS fsdp|tp|both
[evaluate] [again] [SETTING=VALUE ...]`.

Every rank trains on the same batches, so that the model comes to be what one process makes of them.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from test_join import ALONE, loss_of, model_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import p2ptrain

TENSOR_RANKS = 2


def sharded(kind: str) -> nn.Module:
    """The model of test_join.py, shared out among all ranks."""
    model, count = model_of(), dist.get_world_size()
    rows, columns = (count // TENSOR_RANKS, TENSOR_RANKS) if kind == "both" else (1, count)
    mesh = init_device_mesh("cpu", (rows, columns), mesh_dim_names=("data", "tensor"))
    if kind in ("tp", "both"):
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if kind == "both":
        fully_shard(model, mesh=mesh["data"])
    if kind == "fsdp":
        fully_shard(model, mesh=mesh["tensor"])
    return model


def whole(model: nn.Module) -> list[list[float]]:
    """All parameters, in every rank."""
    values = [each.detach() for each in model.parameters()]
    return [(it.full_tensor() if isinstance(it, DTensor) else it).flatten().tolist() for it in values]


def loss(model: nn.Module) -> float:
    return loss_of(model, 10_000).item()


def left_and_joined_again(model: nn.Module, optimizer: torch.optim.Optimizer, out: Path, **given: Any) -> list[int]:
    """Steps at the joins of a loop that keeps the swarm's state itself, and takes it up before a block and in one."""
    counted = []
    first = p2ptrain.join(model, optimizer, run_dir=out / "run", inner_steps=20, quiet=True, **given)
    with first:
        take_steps(model, optimizer, range(12))
        kept = first.leave()
    assert bool(kept) == first.has_node
    for is_inside in (False, True):
        again = p2ptrain.join(model, optimizer, run_dir=out / "run", inner_steps=20, quiet=True, **given)
        if not is_inside:
            again.load_state_dict(kept)
        with again:
            if is_inside:
                again.load_state_dict(kept)
            counted.append(again.global_step)
            take_steps(model, optimizer, range(again.global_step, again.global_step + 6))
            kept = again.state_dict()
    return counted


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    out, peer, steps, kind = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = sharded(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    peers = [] if peer == "-" else [peer]
    given = dict(word.split("=") for word in sys.argv[5:] if "=" in word)
    if "again" in sys.argv[5:]:
        counted = left_and_joined_again(model, optimizer, out, settings={**ALONE, **given})
        (out / f"rank{rank}.json").write_text(json.dumps({"counted": counted, "parameters": whole(model)}))
        dist.destroy_process_group()
        return
    with p2ptrain.join(
        model,
        optimizer,
        peers=peers,
        run_dir=out / "run",
        inner_steps=20,
        wait_for=len(peers),
        settings={**ALONE, **given},
        quiet=True,
        evaluate=loss if "evaluate" in sys.argv[5:] else None,
    ) as swarm:
        first = swarm.global_step
        for step in range(first, first + steps):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.01)
        done = swarm.global_step
    here = sum((it.to_local() if isinstance(it, DTensor) else it).numel() for it in model.parameters())
    found = {"first": first, "done": done, "here": here, "parameters": whole(model), "run_dir": str(swarm.run_dir)}
    (out / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # gloo's threads outlive the group, and one that needs Python while it ends aborts the process: torch's own fault,
    # seen once under load with all work done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
