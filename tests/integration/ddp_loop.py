"""Ranks of one DistributedDataParallel model in a swarm: `torchrun --nproc-per-node 2 ddp_loop.py OUT PEER|- STEPS`."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from test_join import ALONE, evaluate, loss_of, model_of
from torch.nn.parallel import DistributedDataParallel

import p2ptrain
from node.roles.joined_ranks import Ranks


def main() -> None:
    out, peer, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    bare = model_of()
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    peers = [] if peer == "-" else [peer]
    words: list[None] = []
    say = Ranks.say

    def counted(ranks: Ranks, *word: Any) -> Any:
        words.append(None)
        return say(ranks, *word)

    Ranks.say = counted  # type: ignore[method-assign]
    with p2ptrain.join(
        model,
        optimizer,
        peers=peers,
        run_dir=out / "run",
        inner_steps=20,
        wait_for=len(peers),
        settings=ALONE,
        quiet=True,
    ) as swarm:
        first = swarm.global_step
        for step in range(first, first + steps):
            loss_of(model, 2 * step + rank).backward()
            optimizer.step()
            optimizer.zero_grad()
        done = swarm.global_step
        seen = len(swarm.peers) if rank == 0 else None
    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in bare.parameters())).hexdigest()
    found = {"digest": digest, "first": first, "done": done, "peers": seen, "loss": evaluate(bare), "words": len(words)}
    (out / f"rank{rank}.json").write_text(json.dumps({**found, "run_dir": str(swarm.run_dir)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # gloo's threads outlive the group, and one that needs Python while it ends aborts the process: torch's own fault,
    # seen once under load with all work done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
