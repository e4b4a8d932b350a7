"""A training loop of its own with the node in another process, until Ctrl-C: `quiet_loop.py RUN_DIR`."""

import json
import sys

from test_join import ALONE, model_of, train
from torch.optim import AdamW

import p2ptrain


def main() -> int:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    settings = {**ALONE, "node.lane": "process", "node.checkpoint_every": 5}
    swarm = p2ptrain.join(model, optimizer, run_dir=sys.argv[1], inner_steps=4, settings=settings, quiet=True)
    try:
        with swarm:
            print(json.dumps({"event": "listens", "address": swarm.addresses[0]}), flush=True)
            train(model, optimizer, range(100_000), wait_s=0.02)
    except KeyboardInterrupt:
        first = next(model.parameters())[0, 0].item()
        print(json.dumps({"event": "interrupted", "first": first}), flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
