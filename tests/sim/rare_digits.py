"""Digits of which one shard alone has three: a task for swarms in which neighbours are worth unlike much."""

import numpy as np
from torch import nn

from p2ptrain.tasks.digits import CLASSES, PIXELS, Digits, Indices

RARE = (7, 8, 9)
RARE_SHARD, USELESS_SHARD = 1, 2
USELESS_EXAMPLES = 2


class RareDigits(Digits):
    """Where shards are `unlike`, shard 1 has all examples of the rare digits, shard 2 two examples in all, and the
    others share the rest. `hidden`: the width of the layers, so that updates are large beside the rest of the
    traffic."""

    name = "rare-digits"

    def __init__(self, hidden: int = 256, unlike: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.unlike = unlike

    def build_model(self) -> nn.Module:
        """64 pixels to 10 logits."""
        layers = [nn.Linear(PIXELS, self.hidden), nn.LayerNorm(self.hidden), nn.GELU()]
        layers += [nn.Linear(self.hidden, self.hidden), nn.LayerNorm(self.hidden), nn.GELU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden, CLASSES))

    def _deal(self, count: int) -> list[Indices]:
        if not self.unlike:
            return super()._deal(count)
        is_rare = np.isin(self.train.labels.numpy(), RARE)
        common, rare = np.flatnonzero(~is_rare), np.flatnonzero(is_rare)
        shards = [common[index::count] for index in range(count)]
        shards[RARE_SHARD], shards[USELESS_SHARD] = rare, common[:USELESS_EXAMPLES]
        return shards


def create(hidden: int = 256, unlike: bool = True) -> RareDigits:
    """Return the task: `--task rare_digits:create`."""
    return RareDigits(hidden, unlike)
