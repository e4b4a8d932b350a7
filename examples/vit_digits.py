"""A vision transformer in a loop of one's own, trained by a swarm: a ViT of transformers on scikit-learn's digits.

python examples/vit_digits.py --out a --wait-for 1     # the first member; it prints its address
python examples/vit_digits.py --out b --peer ADDRESS   # the others; each draws its batches in its own order
python examples/vit_digits.py --out c --swarm friends/invite.txt

The model ends up in `--out`/model, as `from_pretrained` takes it.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import p2ptrain

try:
    from transformers import ViTConfig, ViTForImageClassification
except ModuleNotFoundError as error:
    sys.exit(f"vit_digits: {error.name} is not installed; it comes with: pip install 'p2ptrain[hf]'")

HELD_OUT, BATCH, RATE = 297, 32, 2e-3


def small_vit() -> ViTForImageClassification:
    """Return a ViT of 59,000 parameters for images of 8 by 8 pixels. All members begin with the same one."""
    torch.manual_seed(0)
    return ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=10,
        )
    )


def batches(x: torch.Tensor, y: torch.Tensor, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches for ever, in an order that follows from `seed`."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        for chosen in torch.randperm(len(x), generator=draw).split(BATCH):
            yield x[chosen], y[chosen]


def main() -> None:
    """Train, print the held-out loss and accuracy, and write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="a folder for the model and the node's run folder")
    parser.add_argument("--peer", action="append", default=[], help="the address that another member prints")
    parser.add_argument("--swarm", help="an invite (a file, or its line), or a member's folder")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--wait-for", type=int, help="members to wait for before the first step, a minute at most")
    parser.add_argument("--only", default="0123456789", help="have examples of these digits only, such as 01234")
    options = parser.parse_args()

    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(digits)
    own = [index for index in range(len(x) - HELD_OUT) if str(digits[index]) in options.only]
    model = small_vit()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    @torch.no_grad()
    def evaluate(model: ViTForImageClassification) -> dict[str, float]:
        logits = model(pixel_values=x[-HELD_OUT:]).logits
        right = logits.argmax(1) == y[-HELD_OUT:]
        return {"loss": cross_entropy(logits, y[-HELD_OUT:]).item(), "accuracy": right.float().mean().item()}

    with p2ptrain.join(
        model,
        optimizer,
        swarm=options.swarm,
        peers=options.peer,
        run_dir=options.out / "run",
        wait_for=options.wait_for,
        evaluate=evaluate,
    ) as swarm:
        steps = range(swarm.global_step, options.steps)
        for step, (images, labels) in zip(steps, batches(x[own], y[own], swarm.data_seed % 2**63), strict=False):
            optimizer.param_groups[0]["lr"] = RATE * (
                1 - step / options.steps
            )  # of the step alone: a second start goes on with it
            logits = model(pixel_values=images).logits
            cross_entropy(logits, labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = evaluate(model.eval())
    print(f"held-out loss {found['loss']:.4f}, accuracy {found['accuracy']:.1%}")
    print(f"the model is in {swarm.export(options.out / 'model')}")


if __name__ == "__main__":
    try:
        main()
    except p2ptrain.P2PTrainError as error:  # in one line: what is wrong, and what to do
        sys.exit(f"vit_digits: {error}")
    except KeyboardInterrupt:  # the node says itself that its checkpoint is written
        sys.exit(130)
