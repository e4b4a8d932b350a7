"""A training loop of one's own, with one line for the swarm: a classifier of scikit-learn's digits.

python examples/plain_loop.py                          # the first member; it prints its address
python examples/plain_loop.py --peer ADDRESS           # the others, on any machine
python examples/plain_loop.py --swarm friends/invite.txt
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import p2ptrain

HELD_OUT = 297


def main() -> None:
    """Train, and print the held-out loss before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], help="the address that another member prints")
    parser.add_argument("--swarm", help="an invite (a file, or its line), or a member's folder")
    parser.add_argument("--run-dir", help="where everything is written, and where a second start goes on")
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()

    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    torch.manual_seed(0)  # all members begin with the same model
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def evaluate(model: nn.Module) -> float:
        return cross_entropy(model(x[-HELD_OUT:]), y[-HELD_OUT:]).item()

    with p2ptrain.join(
        model, optimizer, swarm=options.swarm, peers=options.peer, run_dir=options.run_dir, evaluate=evaluate
    ) as swarm:
        print(f"held-out loss {swarm.evaluate():.3f} at step {swarm.global_step}")
        draw = torch.Generator().manual_seed(swarm.data_seed % 2**63)  # everybody draws other examples
        for _ in range(swarm.global_step, options.steps):
            chosen = torch.randint(len(x) - HELD_OUT, (16,), generator=draw)
            cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"held-out loss {evaluate(model):.3f} at step {options.steps}, folder {swarm.run_dir.parent}")


if __name__ == "__main__":
    main()
