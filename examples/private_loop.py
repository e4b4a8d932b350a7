"""A training loop of one's own whose examples are protected (DP-SGD): scikit-learn's digits, each of which says little.

python examples/private_loop.py --only 01234 --wait-for 1       # the first member; it prints its address
python examples/private_loop.py --only 56789 --peer ADDRESS     # another one, with the other digits
"""

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import p2ptrain

HELD_OUT, BATCH, DELTA = 297, 128, 1e-4
Batch = tuple[torch.Tensor, torch.Tensor]


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean loss of a batch: it is called with one example at a time."""
    images, labels = batch
    return cross_entropy(model(images), labels)


def main() -> None:
    """Train until the budget is spent, and print what was spent and the held-out accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], help="the address that another member prints")
    parser.add_argument("--swarm", help="an invite (a file, or its line), or a member's folder")
    parser.add_argument("--run-dir", help="where everything is written, and where a second start goes on")
    parser.add_argument("--wait-for", type=int, help="members to wait for before the first step, a minute at most")
    parser.add_argument("--only", default="0123456789", help="have examples of these digits only, such as 01234")
    parser.add_argument("--epsilon", type=float, default=4.0, help="the budget, at delta 1e-4")
    parser.add_argument("--noise", type=float, default=4.0, help="over the clipping norm")
    options = parser.parse_args()

    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    own = torch.tensor([index for index in range(len(x) - HELD_OUT) if str(digits[index]) in options.only])
    if not len(own):
        parser.error(f"--only {options.only!r} names none of the digits 0 to 9")
    torch.manual_seed(0)  # all members begin with the same model
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    settings = {
        "privacy.privatizer": "example",
        "privacy.rate": BATCH / len(own),  # each example's chance to be in a step
        "privacy.noise": options.noise,
        "privacy.clip": 1.0,
        "privacy.delta": DELTA,
        "privacy.epsilon": options.epsilon,
        "privacy.public_start": True,  # none of these digits were used for the model that is given
    }

    def evaluate(model: nn.Module) -> float:
        return cross_entropy(model(x[-HELD_OUT:]), y[-HELD_OUT:]).item()  # of examples that need no protection

    def examples_at(rows: list[int]) -> Batch:
        return x[own[rows]], y[own[rows]]

    with p2ptrain.join(
        model,
        optimizer,
        swarm=options.swarm,
        peers=options.peer,
        run_dir=options.run_dir,
        wait_for=options.wait_for,
        inner_steps=10,
        evaluate=evaluate,
        settings=settings,
    ) as swarm:
        for _ in swarm.private_gradients(loss_of, examples_at, len(own)):
            optimizer.step()
        print(f"epsilon {swarm.epsilon:.3f} of {options.epsilon:g} after {swarm.global_step} steps")
    right = int((model(x[-HELD_OUT:]).argmax(1) == y[-HELD_OUT:]).sum())
    print(f"{100 * right / HELD_OUT:.1f}% of the held-out digits, folder {swarm.run_dir.parent}")


if __name__ == "__main__":
    try:
        main()
    except p2ptrain.P2PTrainError as error:  # in one line: what is wrong, and what to do
        sys.exit(f"private_loop: {error}")
    except KeyboardInterrupt:  # the node says itself that its checkpoint is written
        sys.exit(130)
