"""The network of p2ptrain: bytes, identities, protocol. It knows nothing of learning.

`service.GossipService` is what a runtime uses, with the values of `api` and a `config.GossipConfig`; below it
`engine.Engine` decides, and `transport` carries.

The names are loaded when they are first asked for, so that a command that only names an error does not wait for trio.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gossip.core.api import GossipEvent, GossipStats, Head, NeighbourStatus, RoundView, RunInfo, Update
    from gossip.core.config import GossipConfig
    from gossip.core.errors import GossipError, LocalError, Reason, RemoteError
    from gossip.core.identity import Identity
    from gossip.core.ids import Digest, PeerId, RunId, SwarmId
    from gossip.service import GossipService

__all__ = [
    "Digest",
    "GossipConfig",
    "GossipError",
    "GossipEvent",
    "GossipService",
    "GossipStats",
    "Head",
    "Identity",
    "LocalError",
    "NeighbourStatus",
    "PeerId",
    "Reason",
    "RemoteError",
    "RoundView",
    "RunId",
    "RunInfo",
    "SwarmId",
    "Update",
]

_PLACES = {
    "core.api": ("GossipEvent", "GossipStats", "Head", "NeighbourStatus", "RoundView", "RunInfo", "Update"),
    "core.config": ("GossipConfig",),
    "core.errors": ("GossipError", "LocalError", "Reason", "RemoteError"),
    "core.identity": ("Identity",),
    "core.ids": ("Digest", "PeerId", "RunId", "SwarmId"),
    "service": ("GossipService",),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import one of the package's names on first use. AttributeError for any other."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
