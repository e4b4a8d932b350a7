"""What a hostile node publishes: a chain of its own that is well signed, and as true or false as it likes.

No rule of the publisher's is kept here but the signatures: an epoch may go back, a link may stand beside another one at
its place, and a payload need not be what was announced.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gossip.blobs.blob import BlobManifest, blob_manifest_of
from gossip.core.digests import NO_DIGEST
from gossip.core.envelope import Scope, seal
from gossip.core.identity import Identity
from gossip.core.ids import Digest
from gossip.core.statements import (
    Layer,
    UpdateHeader,
    UpdateHeaderBody,
    goodbye_statement,
    parse_update_header,
    record_statement,
    snapshot_offer_statement,
    update_header_statement,
)

Vector = npt.NDArray[np.float32]

KEPT = 64
"""Blobs that are served: more than an honest node holds of its history."""

Encode = Callable[[Vector], tuple[bytes, Vector]]
"""A difference as a payload, and what others will read from it."""


def packed(model_d: Vector) -> bytes:
    """A model as it travels in snapshots."""
    return model_d.astype("<f4").tobytes()


@dataclass
class HostileChain:
    """`public_d`: what those who follow the chain hold of it, as far as it is true."""

    identity: Identity
    scope: Scope
    genesis: Digest
    public_d: Vector
    links: list[UpdateHeader] = field(default_factory=list)
    blobs: dict[Digest, tuple[BlobManifest, bytes]] = field(default_factory=dict)

    @property
    def newest(self) -> UpdateHeader | None:
        """None before the first base."""
        return self.links[-1] if self.links else None

    @property
    def raw(self) -> bytes:
        """The newest link as a hello carries it."""
        return b"" if self.newest is None else self.newest.raw

    def begin(self, *, epoch: int, round: int, model_d: Vector | None) -> UpdateHeader:
        """A new epoch, from this model or (None) from the genesis."""
        if model_d is None:
            body, address = UpdateHeaderBody(round=round, kind="genesis", genesis=self.genesis), NO_DIGEST
        else:
            data = packed(model_d)
            body, address = UpdateHeaderBody(round=round, kind="snapshot", size=len(data)), self.hold(data)
            self.public_d = model_d
        self.links = [self.sign(epoch=epoch, seq=0, prev=NO_DIGEST, address=address, body=body)]
        return self.links[-1]

    def step(self, model_d: Vector, *, round: int, codec: str, encode: Encode, steps: int = 2) -> UpdateHeader:
        """The next delta, towards this model."""
        payload, moved_d = encode(model_d - self.public_d)
        self.public_d = (self.public_d + moved_d).astype(np.float32)
        return self.extend(payload, round=round, codec=codec, steps=steps)

    def extend(
        self,
        payload: bytes,
        *,
        round: int,
        codec: str,
        steps: int = 2,
        size: int | None = None,
        held: bool = True,
        layers: tuple[Layer, ...] = (),
    ) -> UpdateHeader:
        """The next delta with these bytes, whatever they are. `size`: what is said of them; `held`: whether they are
        to be had."""
        last = self.links[-1]
        address = self.hold(payload) if held else blob_manifest_of(payload).address
        body = UpdateHeaderBody(
            round=round,
            kind="delta",
            codec=codec,
            size=len(payload) if size is None else size,
            steps=steps,
            tokens=64,
            layers=layers,
        )
        link = self.sign(epoch=last.epoch, seq=last.seq + 1, prev=last.digest, address=address, body=body)
        self.links.append(link)
        return link

    def twin(self, link: UpdateHeader, payload: bytes) -> UpdateHeader:
        """Another link at the same place."""
        body = UpdateHeaderBody(round=link.body.round, kind="delta", codec="none", size=len(payload))
        if link.seq == 0:
            body = UpdateHeaderBody(round=link.body.round, kind="snapshot", size=len(payload))
        return self.sign(epoch=link.epoch, seq=link.seq, prev=link.prev, address=self.hold(payload), body=body)

    def marked(self, link: UpdateHeader, model_d: Vector) -> UpdateHeader:
        """The same link, naming this as the state after it."""
        body = replace(link.body, state=self.hold(packed(model_d)))
        return self.sign(epoch=link.epoch, seq=link.seq, prev=link.prev, address=link.address, body=body)

    def refined(self, link: UpdateHeader, layers: tuple[Layer, ...]) -> UpdateHeader:
        """The same link with other refinements."""
        body = replace(link.body, layers=layers)
        return self.sign(epoch=link.epoch, seq=link.seq, prev=link.prev, address=link.address, body=body)

    def offer(self, model_d: Vector | None = None, *, round: int | None = None) -> bytes:
        """A snapshot at the newest link: of the chain's own state, or of another."""
        link, data = self.links[-1], packed(self.public_d if model_d is None else model_d)
        statement = snapshot_offer_statement(
            epoch=link.epoch,
            seq=link.seq,
            head=link.digest,
            address=self.hold(data),
            round=link.body.round if round is None else round,
            size=len(data),
        )
        return seal(self.identity, self.scope, statement).raw

    def goodbye(self) -> bytes:
        """Signed at the newest link."""
        epoch, seq = (0, 0) if self.newest is None else self.newest.place
        return seal(self.identity, self.scope, goodbye_statement(epoch=epoch, seq=seq)).raw

    def record(self, *addresses: str, version: int, epoch: int = 1) -> bytes:
        """Where it says that it can be dialled."""
        return seal(self.identity, self.scope, record_statement(epoch=epoch, version=version, addresses=addresses)).raw

    def sign(self, *, epoch: int, seq: int, prev: Digest, address: Digest, body: UpdateHeaderBody) -> UpdateHeader:
        """Any link at all."""
        statement = update_header_statement(epoch=epoch, seq=seq, prev=prev, address=address, body=body)
        return parse_update_header(seal(self.identity, self.scope, statement))

    def hold(self, data: bytes) -> Digest:
        """Serve these bytes."""
        manifest = blob_manifest_of(data)
        self.blobs[manifest.address] = manifest, data
        while len(self.blobs) > KEPT:
            del self.blobs[next(iter(self.blobs))]
        return manifest.address
