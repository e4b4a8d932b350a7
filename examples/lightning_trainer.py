"""A script for Lightning's Trainer, with one line for the swarm: a network for scikit-learn's digits.

python examples/lightning_trainer.py --out a --wait-for 1     # the first member; it prints its address
python examples/lightning_trainer.py --out b --peer ADDRESS   # the others; each draws its batches in its own order
python examples/lightning_trainer.py --out c --alone          # the same script without the line, to compare
"""

import argparse
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import p2ptrain

try:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    from p2ptrain.integrations.lightning import SwarmCallback
except ModuleNotFoundError as error:
    sys.exit(f"lightning_trainer: {error.name} is not installed; it comes with: pip install 'p2ptrain[lightning]'")

HELD_OUT = 297


class DigitsModule(pl.LightningModule):  # type: ignore[misc]  # lightning is not read by the type checker
    """A small convolutional network. It knows nothing of the swarm."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
        )

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        return cross_entropy(self.net(x), y)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Log the held-out loss and accuracy."""
        x, y = batch
        found = self.net(x)
        self.log_dict({"loss": cross_entropy(found, y), "accuracy": (found.argmax(1) == y).float().mean()})

    def configure_optimizers(self) -> dict[str, Any]:
        """Return the optimizer, whose steps the swarm counts, and its learning rate's way to zero."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loaders(only: str, seed: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return batches of examples of the digits in `only`, in an order that follows from `seed`, and the held-out ones
    of all digits."""
    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(digits)
    own = [index for index in range(len(x) - HELD_OUT) if str(digits[index]) in only]
    return (
        DataLoader(
            TensorDataset(x[own], y[own]),
            batch_size=16,
            shuffle=True,
            generator=torch.Generator().manual_seed(seed),
        ),
        DataLoader(TensorDataset(x[-HELD_OUT:], y[-HELD_OUT:]), batch_size=HELD_OUT),
    )


def main() -> None:
    """Train, and print the held-out loss and accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="Lightning's folder, and the node's run folder in it")
    parser.add_argument("--peer", action="append", default=[], help="the address that another member prints")
    parser.add_argument("--swarm", help="an invite (a file, or its line), or a member's folder")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--wait-for", type=int, help="members to wait for before the first step, a minute at most")
    parser.add_argument("--only", default="0123456789", help="have examples of these digits only, such as 01234")
    parser.add_argument("--alone", action="store_true", help="leave the swarm out")
    parser.add_argument("--resume", action="store_true", help="go on from Lightning's newest checkpoint")
    options = parser.parse_args()
    newest = options.out / "last.ckpt"
    if options.resume and not newest.is_file():
        parser.error(f"there is no {newest} to go on from")

    pl.seed_everything(0, verbose=False)  # all members begin with the same model
    module = DigitsModule()
    callbacks: list[Any] = [ModelCheckpoint(options.out, every_n_train_steps=100, save_last=True)]
    if not options.alone:
        swarm = SwarmCallback(
            swarm=options.swarm, peers=options.peer, run_dir=options.out / "run", wait_for=options.wait_for
        )
        callbacks.append(swarm)
    trainer = pl.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        devices=1,
        default_root_dir=options.out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=50,
        callbacks=callbacks,
    )
    seed = zlib.crc32(str(options.out.absolute()).encode())  # everybody draws other batches
    training, held_out = loaders(options.only, seed)
    trainer.fit(module, training, held_out, ckpt_path=newest if options.resume else None)
    (found,) = trainer.validate(module, held_out, verbose=False)
    print(f"held-out loss {found['loss']:.4f}, accuracy {found['accuracy']:.1%}")


if __name__ == "__main__":
    try:
        main()
    except p2ptrain.P2PTrainError as error:  # in one line: what is wrong, and what to do
        sys.exit(f"lightning_trainer: {error}")
    except KeyboardInterrupt:  # the node says itself that its checkpoint is written
        sys.exit(130)
