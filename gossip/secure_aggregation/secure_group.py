"""Who sums what: the members of a secure sum, its sizes and bounds, and the result.

Values are integers modulo 2^bits, `bits` of them a value on the wire. As in an all-reduce (gossip/allreduce) the
vector is cut into parts, and each member sums one; the parts are whole chunks, and each chunk holds a multiple of
eight values, so that it begins at a whole byte. With `owners` above 1 each part is summed by so many members, in the
group's order from its first owner on: a member that leaves late then costs nothing, and one that lies about its sum
is outvoted.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gossip.allreduce.allreduce import Group
from gossip.core.digests import digest_of
from gossip.core.errors import LocalError
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import (
    CHUNK_BYTES,
    MAX_BLOB_BYTES,
    MAX_COUNTER,
    MAX_GROUP,
    MAX_MASKED_BITS,
    MIN_MASKED_BITS,
    MIN_SECURE_GROUP,
)
from gossip.core.wire import pack
from gossip.secure_aggregation.packing import Values, packed_size


def default_threshold(members: int) -> int:
    """Return floor(2n/3) + 1 of n members: two sets of survivors can only both be signed by so many if more than a
    third of the group sign both (Bonawitz et al. 2017, section 6)."""
    return 2 * members // 3 + 1


@dataclass(frozen=True, kw_only=True)
class SecureGroup:
    """A secure sum's members in an order that all agree on, its round, the number of values (`count`) and the bits of
    each.

    `threshold`: members without whom nothing is opened; 0: floor(2n/3) + 1. `owners`: members that sum each part.
    `chunk_bytes`: the most bytes of a chunk. Everything here is in the `name` that members sign.
    """

    members: tuple[PeerId, ...]
    round: int
    count: int
    bits: int
    threshold: int = 0
    owners: int = 1
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        members = len(self.members)
        if not MIN_SECURE_GROUP <= members <= MAX_GROUP or len(set(self.members)) < members:
            raise LocalError(f"a secure group has {MIN_SECURE_GROUP} to {MAX_GROUP} members, each once")
        if not MIN_MASKED_BITS <= self.bits <= MAX_MASKED_BITS:
            raise LocalError(f"a masked value has {MIN_MASKED_BITS} to {MAX_MASKED_BITS} bits, not {self.bits}")
        if not self.threshold:
            object.__setattr__(self, "threshold", default_threshold(members))
        if not default_threshold(members) <= self.threshold <= members - 1:
            raise LocalError(f"the threshold of {members} members is {default_threshold(members)} to {members - 1}")
        if not 1 <= self.owners <= members:
            raise LocalError(f"a part of {members} members has 1 to {members} owners, not {self.owners}")
        if not 0 <= self.round <= MAX_COUNTER:
            raise LocalError(f"a round is 0 to {MAX_COUNTER}, not {self.round}")
        if not 0 < self.count <= MAX_BLOB_BYTES:
            raise LocalError(f"a vector has 1 to {MAX_BLOB_BYTES} values, not {self.count}")
        if self.chunk_bytes < self.bits:
            raise LocalError(f"a chunk of {self.chunk_bytes} bytes holds no eight values of {self.bits} bits")
        assert self.parts  # raises LocalError for sizes that no exchange takes

    @cached_property
    def parts(self) -> Group:
        """The sizes of parts and chunks, in bytes on the wire."""
        width = self.chunk_bytes // self.bits * self.bits
        return Group(members=self.members, round=self.round, size=self.packed_bytes, chunk_bytes=width)

    @property
    def packed_bytes(self) -> int:
        """The bytes of a vector on the wire."""
        return packed_size(self.count, self.bits)

    @cached_property
    def name(self) -> Digest:
        """The digest that members sign, so that statements of groups that differ in anything are not confused."""
        sizes = (self.round, self.count, self.bits, self.threshold, self.owners, self.chunk_bytes)
        return digest_of(pack(("secure", *sizes, self.members)))

    def values_of(self, owner: PeerId) -> slice:
        """Return which values the part of its first owner holds."""
        part = self.parts.part(owner)
        return slice(part.start * 8 // self.bits, min(self.count, part.stop * 8 // self.bits))


class SecureSumError(LocalError):
    """Nothing was opened: the reason in one line. What every member had stays unknown to all others."""


@dataclass(frozen=True, kw_only=True)
class SummedPart:
    """The sum of the survivors' values `part` of the vector; None: it did not come in time. `owner`: its first
    owner."""

    owner: PeerId
    part: slice
    values: Values | None = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class SecureSum:
    """What was opened. `survivors`: whose vectors are in the sum, in the group's order. `parts`: all parts that are not
    empty, in the vector's order. `seeds`: a digest of the survivors' self-mask seeds, which nobody could choose or know
    before: the same at all members."""

    survivors: tuple[PeerId, ...]
    parts: tuple[SummedPart, ...]
    seeds: Digest

    @property
    def whole(self) -> bool:
        """Whether every part came."""
        return all(part.values is not None for part in self.parts)

    def values(self) -> Values:
        """Return the sum, shape (count,). Raises LocalError where a part did not come."""
        found = [part.values for part in self.parts if part.values is not None]
        if len(found) < len(self.parts):
            raise LocalError(f"{len(self.parts) - len(found)} parts of the sum did not come")
        return np.concatenate(found)
