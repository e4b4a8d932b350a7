"""The hf-vision task: an image classifier of transformers, whole or by LoRA, on a folder of images or the digits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import torch
from torch import nn
from torch.nn import functional

from p2ptrain.tasks.base import Batch, Shard, TaskError
from p2ptrain.tasks.hf.base_model import BaseModel, open_base
from p2ptrain.tasks.hf.built_model import BaseDtype, FourBit, FreezeA, LoraAlpha, LoraRank, LoraTargets, built_model
from p2ptrain.tasks.hf.extras import require
from p2ptrain.tasks.hf.images import ImageSet, open_images
from p2ptrain.tasks.hf.saving import merged_model, save_pretrained

KIND: Final = "AutoModelForImageClassification"

SMALL: Final = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.1,
}
"""The model where none is given, a ViT of 69k parameters. With ViT's 0.02, which suits a width of 768, its loss is
four times as high after 300 steps."""

PATCHES_ACROSS: Final = 4
"""Of that model, for images of any size: 16 patches."""

EVAL_BATCH: Final = 64


class HFVision:
    """An image classifier of transformers.

    `model` is a folder with weights, a name of the hub, or a config.json to begin from (None: a small ViT). `data` is a
    folder with a folder of images for each class (None: scikit-learn's handwritten digits). TaskError on any that
    cannot be.
    """

    name = "hf-vision"
    metric = "nats per image"
    units: ClassVar[Mapping[str, str]] = {"accuracy": "%", "own shard": "nats per image"}
    keeps_dtypes = True

    def __init__(
        self,
        model: Annotated[
            str | None,
            "A folder with weights, a name of the hub (user/name@revision), or a config.json; none: a small ViT.",
        ] = None,
        data: str | Path | None = None,
        size: Annotated[int | None, "Pixels of an image's side; none: the model's, or 8."] = None,
        lora: LoraRank = None,
        lora_alpha: LoraAlpha = None,
        lora_targets: LoraTargets = None,
        freeze_a: FreezeA = False,
        dtype: BaseDtype = "fp32",
        load_in_4bit: FourBit = False,
    ) -> None:
        base = None if model is None else open_base(str(model), KIND)
        channels = 3 if base is None else int(getattr(base.config, "num_channels", 3))
        pixels = _side(base) if size is None else size
        self.images: ImageSet = open_images(data, size=pixels, channels=None if base is None else channels)
        if base is None:
            base = _small(self.images)
        _check_fits(base, self.images)
        self.built = built_model(
            base,
            lora=lora,
            lora_alpha=lora_alpha,
            lora_targets=lora_targets,
            freeze_a=freeze_a,
            dtype=dtype,
            load_in_4bit=load_in_4bit,
        )

    def build_model(self) -> nn.Module:
        """Return the model, read from its folder or drawn from torch's global generator."""
        return self.built.build()

    def identity(self, model: nn.Module) -> bytes:
        """Return what members must have alike and what does not travel: classes, configuration, frozen weights."""
        return "\n".join(self.images.classes).encode() + self.built.identity(model)

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """`size` images of the shard, fp32 (size, channels, side, side), and labels int64 (size,)."""
        return self.images.batch(self.images.draw(step, seed=seed, shard=shard, size=size))

    def example_count(self, shard: Shard) -> int:
        """Return how many images the shard has."""
        return len(self.images.of_shard(shard))

    def examples_at(self, shard: Shard, numbers: Sequence[int]) -> Batch:
        """Return these images of the shard, and their labels, as `train_batch` does."""
        return self.images.batch(self.images.of_shard(shard)[list(numbers)].tolist())

    def eval_batches(self, limit: int) -> list[Batch]:
        """Up to `limit` of the images that are held out for all."""
        return self._batches(self.images.held_out[:limit].tolist())

    def shard_eval_batches(self, shard: Shard, limit: int) -> list[Batch]:
        """Up to `limit` of the images that the shard holds out for itself."""
        return self._batches(self.images.own_held_out(shard)[:limit].tolist())

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy, in nats per image."""
        return functional.cross_entropy(_logits(model, batch), batch[1])

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Return the share of held-out images that the model names rightly, in percent."""
        return {"accuracy": 100 * float((_logits(model, batch).argmax(1) == batch[1]).float().mean())}

    def tokens(self, batch: Batch) -> int:
        """Images classified."""
        return int(batch[1].numel())

    def save(self, model: nn.Module, folder: Path, *, merged: bool) -> None:
        """Write configuration, classes' names, weights, and how an image becomes numbers."""
        save_pretrained(model, self.built, folder, merged=merged)
        self.images.save_processor(folder)

    def without_adapters(self, model: nn.Module) -> nn.Module:
        """Return the model with the adapters' products added to its weights."""
        return merged_model(model, self.built)

    def _batches(self, chosen: list[int]) -> list[Batch]:
        spans = [chosen[at : at + EVAL_BATCH] for at in range(0, len(chosen), EVAL_BATCH)]
        return [self.images.batch(span) for span in spans]


def _logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    logits: torch.Tensor = model(pixel_values=batch[0]).logits
    return logits.float()


def _side(base: BaseModel | None) -> int | None:
    """Pixels that the model's configuration asks for; None where it does not."""
    found = None if base is None else getattr(base.config, "image_size", None)
    if isinstance(found, list | tuple) and len(set(found)) == 1:
        found = found[0]
    if found is not None and type(found) is not int:
        raise TaskError(f"the model's images are {found!r} pixels: only square ones can be read")
    return found


def _small(images: ImageSet) -> BaseModel:
    config = require("transformers").ViTConfig(
        image_size=images.size,
        patch_size=max(1, images.size // PATCHES_ACROSS),
        num_channels=images.channels,
        num_labels=len(images.classes),
        **SMALL,
    )
    return BaseModel(kind=KIND, config=config, folder=None)


def _check_fits(base: BaseModel, images: ImageSet) -> None:
    config: Any = base.config
    if config.num_labels != len(images.classes):
        if base.folder is not None:
            raise TaskError(
                f"the model tells {config.num_labels} classes apart, and the data have {len(images.classes)}: give a "
                "folder of images for each of its classes, or begin from its config.json"
            )
        config.num_labels = len(images.classes)
    config.id2label = dict(enumerate(images.classes))
    config.label2id = {name: number for number, name in enumerate(images.classes)}
