"""What a trainer needs to protect its data: which privatizer, how examples are drawn, and who counts the releases."""

from dataclasses import dataclass, field

from p2ptrain.privacy.allowance import unaccounted
from p2ptrain.privacy.base import Privatizer, Spend
from p2ptrain.privacy.secret_random import SecretRandom


@dataclass(frozen=True, kw_only=True)
class PrivateTraining:
    """A trainer that is given this protects its shard as `privatizer` says, or is not built."""

    privatizer: Privatizer
    rate: float | None = None
    """Of examples: probability with which each is in a step. None: as many are expected as a step has otherwise."""
    chunk: int | None = None
    """Examples whose gradients are in memory at a time. None: twice as many as are expected in a step, and no more than
    take CHUNK_BYTES."""
    spend: Spend = unaccounted
    """Called before releases are made."""
    source: SecretRandom = field(default_factory=SecretRandom)
    """Of noise, and of who is drawn."""
