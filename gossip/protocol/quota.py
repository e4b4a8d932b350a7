"""The older name of `rate_limit.KeyedTokenBucket`, by which much of this package still imports it."""

from gossip.protocol.rate_limit import MAX_NAMES, KeyedTokenBucket

Quota = KeyedTokenBucket

__all__ = ["MAX_NAMES", "Quota"]
