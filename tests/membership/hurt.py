"""Bytes that somebody might send: valid ones mutated, by structure and by chance, and noise; and the parsers they are
for."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgpack
from swarms import (
    ADMIN,
    ADMINS,
    NOW,
    PSK,
    SWARM,
    after,
    appointment,
    bootstrap,
    certificate,
    chain_of,
    invite,
    line_parts,
    peer,
)

from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.keyfile import Cost, seal, unseal
from gossip.membership import (
    Policy,
    Revocation,
    Roster,
    SwarmClaim,
    dump_roster,
    encode_invite_code,
    encode_short,
    load_roster,
    pack_item,
    pages,
    parse_any,
    parse_invite_code,
    parse_item,
    parse_manifest,
    parse_page,
    psk_fingerprint,
    revoke_grant,
    revoke_peer,
    rotate,
    rotated,
    shorten,
)
from gossip.membership.certificate import parse_credentials
from gossip.membership.manifest_chain import load_chain
from gossip.membership.refusal import Refusal, parse_refusal
from gossip.membership.settings import pack_settings, parse_settings
from gossip.membership.short_invite import pack_short, parse_short
from gossip.membership.visit import Visitor, answer_visit, make_visit, parse_visit

CHEAP: Final = Cost(operations=1, memory_bytes=8192)


@dataclass(frozen=True)
class Format:
    """A parser and bytes that it takes; `short`: those of them, or others, that every bit is tried of."""

    name: str
    parse: Callable[[bytes], object]
    valid: tuple[bytes, ...]
    short: tuple[bytes, ...] = ()

    @property
    def lean(self) -> tuple[bytes, ...]:
        """What every bit is tried of."""
        return self.short or self.valid


def formats() -> tuple[Format, ...]:
    """Every parser of membership."""
    board = chain_of(ADMINS[:3], threshold=2, psk_fingerprint=psk_fingerprint(PSK))
    long = chain_of()
    long.accept(after(long, ADMIN, policy=Policy.ALLOW, allow=frozenset(peer(each).peer_id for each in range(5))))
    lean = chain_of(bootstrap=(), settings={})
    lean.accept(after(lean, ADMIN, bootstrap=(), settings={}))
    invited = certificate(peer(1), invite())
    second = rotated(invited, rotate(peer(1), peer(2).peer_id, issued_at=NOW))
    revoked = (revoke_peer(ADMIN, SWARM, peer(1).peer_id, issued_at=NOW, reason="lost"),)
    items = (invited, second, appointment(peer(3)), *revoked, revoke_grant(ADMIN, SWARM, invite().id, issued_at=NOW))
    roster = Roster(SWARM, [ADMIN.public_key])
    for each in items:
        roster.put(each)
    lines = (line_parts(), line_parts(long))
    out = next(each for each in items if isinstance(each, Revocation))
    refusals = tuple(
        each.pack() for each in (Refusal(reason=Reason.REVOKED, revocation=out), Refusal(reason=Reason.EXPIRED))
    )
    short = shorten(line_parts(lean_chain := chain_of(settings={})))
    assert short is not None
    asks = make_visit(short.invite, short.secret, peer(1).peer_id, short.named, 0)
    answer = answer_visit(parse_visit(asks), lean_chain)

    def hears(said: bytes) -> object:
        visitor = Visitor(short, peer(1))
        visitor.heard(peer(2).peer_id, said)
        return visitor.take()

    sealed = seal(b"\x01" * 32, b"p", purpose="authority", salt=b"s" * 16, nonce=b"n" * 24, cost=CHEAP)
    return (
        Format("manifest", parse_manifest, (board.newest.raw, long.newest.raw), (lean.newest.raw,)),
        Format("chain", load_chain, (long.dump(), board.dump()), (lean.dump(),)),
        Format("settings", parse_settings, (pack_settings({"a": [1, {"b": 0.5}], "c": bootstrap(1)[0]}),)),
        Format(
            "line",
            lambda data: parse_invite_code(data.decode("latin-1")),
            tuple(encode_invite_code(p).encode() for p in lines),
        ),
        Format("short line", lambda data: parse_any(data.decode("latin-1")), (encode_short(short).encode(),)),
        Format("short invite", parse_short, (pack_short(short),)),
        Format("visit", parse_visit, (asks,)),
        Format("answer to a visit", hears, (answer,)),
        Format(
            "certificate",
            parse_credentials,
            (invited.raw, second.raw, items[2].raw, SwarmClaim(swarm=SWARM).raw),
            (items[0].raw, items[2].raw, SwarmClaim(swarm=SWARM).raw),
        ),
        Format("item", parse_item, tuple(map(pack_item, items)), tuple(map(pack_item, items[1::2]))),
        Format("refusal", parse_refusal, refusals, refusals[:1]),
        Format("page", parse_page, tuple(pages(roster, range(256)))),
        Format("roster", lambda data: load_roster(data, SWARM, [ADMIN.public_key]), (dump_roster(roster),)),
        Format("sealed", open_cheap, (sealed,)),
    )


def open_cheap(data: bytes) -> bytes:
    """`unseal`, but for files that ask for what is allowed and would take the tests' time."""
    try:
        operations, memory, *_ = msgpack.unpackb(data[18:])
        cheap = (operations, memory) == (CHEAP.operations, CHEAP.memory_bytes)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        cheap = True
    return unseal(data, b"p", purpose="authority") if cheap else b""


def refused(parse: Callable[[bytes], object], data: bytes) -> bool:
    """Whether a parser refuses; anything but our own errors passes through."""
    try:
        parse(data)
    except (LocalError, RemoteError):
        return True
    return False


def processor_s(parse: Callable[[bytes], object], data: bytes) -> float:
    """Processor seconds of one parse: what a busy machine does not change."""
    start = time.process_time()
    refused(parse, data)
    return time.process_time() - start


def mutations(rng: random.Random, valid: tuple[bytes, ...]) -> Iterator[bytes]:
    """Hurt bytes without end."""
    ways = (_flipped, _cut, _spliced, _regrown, _noise, _header, _nested)
    while True:
        yield rng.choice(ways)(rng, rng.choice(valid), rng.choice(valid))


def _flipped(rng: random.Random, data: bytes, _: bytes) -> bytes:
    hurt = bytearray(data)
    for _each in range(rng.choice((1, 1, 2, 8))):
        hurt[rng.randrange(len(hurt))] ^= 1 << rng.randrange(8)
    return bytes(hurt)


def _cut(rng: random.Random, data: bytes, _: bytes) -> bytes:
    start, stop = sorted(rng.randrange(len(data) + 1) for _each in range(2))
    return rng.choice((data[:stop], data[start:], data[:start] + data[stop:], data + data[start:stop]))


def _spliced(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _regrown(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """One value somewhere in the structure is another, and all around it is right again."""
    try:
        return bytes(msgpack.packb(_changed(rng, msgpack.unpackb(data, strict_map_key=False))))
    except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException):
        return _flipped(rng, data, data)


def _changed(rng: random.Random, value: object) -> object:
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, bytes) and len(value) > 64 and rng.random() < 0.8:
        return _regrown(rng, value, value)
    odd: tuple[object, ...] = (0, -1, 2**63, None, True, 1.5, "", "x" * 5000, bytes(32), bytes(5000), [], {}, [value])
    return rng.choice((*odd, rng.randbytes(rng.randrange(70))))


def _noise(rng: random.Random, _: bytes, __: bytes) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 8, 100, 1000)))


def _header(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """A right beginning, then noise."""
    return data[: rng.randrange(20)] + rng.randbytes(rng.randrange(200))


def _nested(rng: random.Random, _: bytes, __: bytes) -> bytes:
    """Arrays in arrays, as deep or wide as their headers say."""
    head = rng.choice(
        (b"\x91", b"\x81", b"\x81\xa1a", b"\xdc\x00\x40", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc7\x01")
    )
    return head * rng.choice((1, 10, 300, 511, 512, 1023, 1024, 4000)) + b"\xc0"
