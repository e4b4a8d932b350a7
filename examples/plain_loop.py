"""A training loop of one's own, with one line for the swarm: a classifier of scikit-learn's digits.

python examples/plain_loop.py --wait-for 1             # the first member; it prints its address
python examples/plain_loop.py --peer ADDRESS           # the others, on any machine
python examples/plain_loop.py --swarm friends/invite.txt
"""

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import p2ptrain

HELD_OUT, RATE = 297, 3e-3


def main() -> None:
    """Train, and print the held-out loss before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], help="the address that another member prints")
    parser.add_argument("--swarm", help="an invite (a file, or its line), or a member's folder")
    parser.add_argument("--run-dir", help="where everything is written, and where a second start goes on")
    parser.add_argument("--wait-for", type=int, help="members to wait for before the first step, a minute at most")
    parser.add_argument("--only", default="0123456789", help="have examples of these digits only, such as 01234")
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()

    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    own = [index for index in range(len(x) - HELD_OUT) if str(digits[index]) in options.only]
    torch.manual_seed(0)  # all members begin with the same model
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    def evaluate(model: nn.Module) -> float:
        return cross_entropy(model(x[-HELD_OUT:]), y[-HELD_OUT:]).item()

    with p2ptrain.join(
        model,
        optimizer,
        swarm=options.swarm,
        peers=options.peer,
        run_dir=options.run_dir,
        wait_for=options.wait_for,
        evaluate=evaluate,
    ) as swarm:
        print(f"held-out loss {swarm.evaluate():.3f} at step {swarm.global_step}")
        draw = torch.Generator().manual_seed(swarm.data_seed % 2**63)  # everybody draws other examples
        for step in range(swarm.global_step, options.steps):
            optimizer.param_groups[0]["lr"] = RATE * (
                1 - step / options.steps
            )  # of the step alone: a second start goes on with it
            chosen = torch.tensor(own)[torch.randint(len(own), (16,), generator=draw)]
            cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"held-out loss {evaluate(model):.3f} at step {options.steps}, folder {swarm.run_dir.parent}")


if __name__ == "__main__":
    try:
        main()
    except p2ptrain.P2PTrainError as error:  # in one line: what is wrong, and what to do
        sys.exit(f"plain_loop: {error}")
    except KeyboardInterrupt:  # the node says itself that its checkpoint is written
        sys.exit(130)
