"""Labelled images: a folder with a folder for each class, or scikit-learn's digits. Values are from -1 to 1.

An example's key is a hash of its name in the folder: reading every image at the start would take as long as an epoch.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.digits import CLASSES, all_digits
from p2ptrain.tasks.hf.dealing import Dealing, Numbers, Part, drawn
from p2ptrain.tasks.hf.extras import require

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
DIGIT_PIXELS: Final = 8
DEFAULT_PIXELS: Final = 32
"""Of the side of an image of a folder's, where no model says more."""

GREY, COLOUR = 1, 3


class Pictures(Protocol):
    """Where pixels come from."""

    def read(self, number: int, size: int, channels: int) -> torch.Tensor:
        """Return image `number`, fp32 (channels, size, size) from -1 to 1. TaskError where it cannot be read."""


class ImageSet:
    """m images of some classes, dealt to shards."""

    def __init__(
        self,
        pictures: Pictures,
        names: Sequence[str],
        labels: Sequence[int],
        *,
        classes: Sequence[str],
        size: int,
        channels: int,
    ) -> None:
        self._pictures, self._labels = pictures, torch.tensor(list(labels), dtype=torch.int64)
        self.classes, self.size, self.channels = tuple(classes), size, channels
        self._dealing = Dealing(np.array([_key(name) for name in names], np.uint64))
        self.held_out = self._dealing.held_out()
        """For all."""
        self._dealt: dict[tuple[int, int], Numbers] = {}

    def draw(self, step: int, *, seed: int, shard: Shard, size: int) -> list[int]:
        """Return the numbers of one batch: each image of the shard once, in an order of the seed, then again."""
        mine = self.of_shard(shard)
        chosen: list[int] = mine[drawn(step, seed=seed, index=shard.index, size=size, count=len(mine))].tolist()
        return chosen

    def of_shard(self, shard: Shard) -> Numbers:
        """Return the images that the shard trains on. TaskError where it has none."""
        place = (shard.index % shard.count, shard.count)
        mine = self._dealt.get(place)
        if mine is None:
            mine = self._dealt[place] = self._dealing.of_shard(shard)
        return mine

    def own_held_out(self, shard: Shard) -> Numbers:
        """Return the images that the shard holds out for itself."""
        return self._dealing.of_shard(shard, Part.OWN_HELD_OUT)

    def save_processor(self, folder: Path) -> None:
        """Write how an image becomes numbers, as `AutoImageProcessor.from_pretrained` reads it."""
        said = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": self.size, "width": self.size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5] * self.channels,
            "image_std": [0.5] * self.channels,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(said, indent=2))

    def batch(self, numbers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images fp32 (n, channels, size, size) and labels int64 (n,). TaskError for one that cannot be
        read."""
        images = [self._pictures.read(number, self.size, self.channels) for number in numbers]
        return torch.stack(images), self._labels[torch.tensor(numbers, dtype=torch.int64)]


def open_images(data: str | Path | None, *, size: int | None, channels: int | None) -> ImageSet:
    """Return the images of `data`, a folder of classes, or the digits. TaskError where there are none."""
    if size is not None and size < 1:
        raise TaskError(f"size must be 1 pixel or more, not {size}")
    return _digits(size, channels) if data is None else _folder(Path(data).expanduser(), size, channels)


def _digits(size: int | None, channels: int | None) -> ImageSet:
    pool = all_digits()
    return ImageSet(
        _Digits(pool.images),
        [f"digit {number}" for number in range(len(pool.labels))],
        pool.labels.tolist(),
        classes=[str(digit) for digit in range(CLASSES)],
        size=size or DIGIT_PIXELS,
        channels=channels or GREY,
    )


class _Digits:
    def __init__(self, images: torch.Tensor) -> None:
        self._images = images.view(-1, 1, DIGIT_PIXELS, DIGIT_PIXELS) * 2 - 1

    def read(self, number: int, size: int, channels: int) -> torch.Tensor:
        image = self._images[number]
        if size != DIGIT_PIXELS:
            image = torch.nn.functional.interpolate(image[None], (size, size), mode="nearest")[0]
        return image.expand(channels, size, size)


def _folder(root: Path, size: int | None, channels: int | None) -> ImageSet:
    if not root.is_dir():
        raise TaskError(f"data {str(root)!r} is no folder: give one with a folder of images for each class")
    classes = sorted(each.name for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
    found = [
        (path, number)
        for number, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if len(classes) < 2 or not found:
        raise TaskError(
            f"data {str(root)!r} has {len(classes)} folders with {len(found)} images: a folder for each class"
        )
    return ImageSet(
        _Files([path for path, _ in found]),
        [path.relative_to(root).as_posix() for path, _ in found],
        [number for _, number in found],
        classes=classes,
        size=size or DEFAULT_PIXELS,
        channels=channels or COLOUR,
    )


class _Files:
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        require("PIL.Image", install="pillow")

    def read(self, number: int, size: int, channels: int) -> torch.Tensor:
        library = require("PIL.Image", install="pillow")
        path = self._paths[number]
        try:
            with library.open(path) as opened:
                image = opened.convert("L" if channels == GREY else "RGB").resize((size, size), library.BILINEAR)
        except (OSError, SyntaxError, ValueError, library.DecompressionBombError) as error:
            raise TaskError(f"the image {path} cannot be read: {error}") from error
        pixels: npt.NDArray[np.float32] = np.asarray(image, np.float32).reshape(size, size, -1)
        return torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest(), "big")
