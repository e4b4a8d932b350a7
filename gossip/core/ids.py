"""Types of identifiers: who a peer is, what a blob is, which run a message belongs to.

All are plain strings and bytes underneath, so that they cross every boundary without conversion; the NewTypes
only keep a digest from being passed where a run id is wanted.
"""

from typing import NewType

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58 (`12D3Koo...`): the multihash of the node's Ed25519 public key."""

Digest = NewType("Digest", bytes)
"""BLAKE2b-256 of some bytes: the content address of a blob, or the name of a link in a chain. 32 bytes."""

SwarmId = NewType("SwarmId", bytes)
"""The first 16 bytes of BLAKE2b of the swarm's name (later: of its authority key)."""

RunId = NewType("RunId", bytes)
"""16 bytes computed from everything that members must agree on (parameter names and shapes, task, run name)."""
