"""Every bound of the wire in one place, each with why it is that number.

A parser checks a size before it decodes, and a store checks a count before it adds. Nothing here can be configured:
two nodes that disagreed on a bound would charge each other for honest messages.
"""

from typing import Final

PROTOCOL_VERSION: Final = 3
"""Goes into every signature; a change of any format below raises it."""

STREAM_PROTOCOL: Final = "/p2ptrain/1/session"
"""The one stream protocol: requests and responses."""

PAUSE_PROTOCOL: Final = "/p2ptrain/pause/1.0.0"
"""The stream protocol of pauses: framed as the other one. It is not below `/p2ptrain/1`, so a release that does not
know it refuses the stream and charges nobody; a request that it cannot read it would charge."""

SHIFT_PROTOCOL: Final = "/p2ptrain/shift/1.0.0"
"""The stream protocol of claims that a member's data have shifted; as that of pauses, for the same reason."""

STATISTICS_PROTOCOL: Final = "/p2ptrain/statistics/1.0.0"
"""The stream protocol of a member's class statistics; as that of pauses, for the same reason."""

KIB: Final = 1024
MIB: Final = 1024 * 1024

MAX_ENVELOPE_BYTES: Final = 8 * KIB
"""A gossipsub message that still fits a few packets; a record of 8 addresses of 256 characters needs 2.3 KiB."""

MAX_BODY_BYTES: Final = 6 * KIB
"""The envelope's own fields and signature take under 400 bytes; this leaves them room to spare."""

MAX_ADDRESSES: Final = 8
"""TCP and QUIC, IPv4 and IPv6, local and public: eight. More is a way to make others dial strangers."""

MAX_ADDRESS_CHARS: Final = 256
"""A relay address with two peer ids and a DNS name stays under 220 characters."""

MAX_RECORD_NEIGHBOURS: Final = 64
"""Neighbours that a record names: eight times the default degree, at 10 bytes each."""

MAX_HELLO_RECORDS: Final = 32
"""Enough for a newcomer to fill its degree (8) four times over."""

MAX_HELLO_BYTES: Final = 128 * KIB
"""32 records of at most 2.4 KiB, one announcement and one record of our own, with room to spare."""

MAX_FOUND: Final = 16
"""Members that an answer to a find request names, and members of a bucket; discovery/routing_table.py says why."""

MAX_FIND_ANSWER_BYTES: Final = (MAX_FOUND + 2) * MAX_ENVELOPE_BYTES
"""So many records, the answerer's own, and their framing."""

MAX_LINKS: Final = 8
"""Links in one response: a gap longer than that is cheaper to close by a snapshot."""

MAX_REQUEST_BYTES: Final = MAX_HELLO_BYTES
"""A hello is the largest request."""

MARK_EVERY: Final = 4
"""Of so many links one may name the state after it: hashing a model for each would cost more than it is worth. A
newcomer that begins at one has three links to follow at most, of the eight that are held."""

CHUNK_BYTES: Final = MIB
"""What a puller asks for, holds and verifies at once. 1 MiB keeps the hash list at 0.003% and a resend cheap."""

MAX_BLOB_BYTES: Final = 16 * 1024 * MIB
"""No blob is larger, whatever a node allows: 4 billion fp32 parameters. Its manifest has 16,384 chunks (544 KiB)."""

MAX_CHUNKS: Final = MAX_BLOB_BYTES // CHUNK_BYTES

MAX_MANIFEST_BYTES: Final = MAX_CHUNKS * 34 + 64
"""msgpack spends two bytes of header on a digest of 32."""

MAX_RESPONSE_BYTES: Final = 2 * MIB
"""The largest manifest together with one chunk."""

MAX_STATISTICS_BYTES: Final = 256 * KIB
"""Of one member's class statistics: four classes with 16,000 coordinates each, or a hundred of 25 x 25 pixels. Those of
eight neighbours take a second over 16 Mbit/s."""

MAX_STOOD_WITH: Final = 64
"""Members of rounds that withstood the liars that a node remembers, in its checkpoints too: eight times the default
degree, so that they outlast the churn of a night. Chosen."""

MAX_GROUP: Final = 64
"""Members of an exchange of parts: 64 of 1 GiB own 16 MiB each. Their names, of 54 bytes each, are only hashed."""

MIN_SECURE_GROUP: Final = 4
"""Members of a secure sum at least: of three, two that agree on what they had know what the third had."""

MIN_MASKED_BITS: Final = 8
MAX_MASKED_BITS: Final = 32
"""Bits of a masked value: a byte of it then holds bits of two values at most, and one draw of a mask is enough."""

MIN_RATE: Final = 16 * KIB
"""Bytes a second below which a transfer is given up: a 1 MiB chunk within a minute; ISDN did half of it."""

MAX_CODEC_CHARS: Final = 32
"""A registry name such as `q2` or `topk`."""

MAX_LAYERS: Final = 4
"""Refinements of an update: from a hundredth of a bit to eight bits a parameter four steps are enough."""

MAX_DETAIL_CHARS: Final = 200
"""A refusal's explanation: one line for a log."""

MAX_COUNTER: Final = 2**53 - 1
"""Epochs (unix ms), sequence numbers, rounds, steps and tokens: exact in a double, so in every language's JSON."""

MAX_STREAMS_PER_PEER: Final = 8
"""A neighbour needs one stream to pull, one for hellos, one for find requests and two to pull others' blobs from us;
streams that end may overlap the next ones for a while."""

MAX_REGION_CHARS: Final = 32
"""A region's label, such as `eu-west` or a data centre's name."""

MAX_REGION_MEMBERS: Final = 1 << 20
"""Members that a region may be said to have."""

TAG_BYTES: Final = 8
"""Bytes of the tag that names a peer in a graph: the first bytes of its key."""
