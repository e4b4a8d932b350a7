"""An invite as one line to paste: `p2p1` (full) or `p2p2` (short), then base64url without padding of

    length: 3 bytes, big-endian, of all bytes after it but the checksum
    body:   full: zlib of msgpack [invite: bin, secret seed: bin(32), pre-shared key: bin (0 or 32), manifests: [bin]]
            short: as short_invite.py has it
    check:  the first 4 bytes of BLAKE2b-256 of the line's first four letters, length and body

A full line is all that a newcomer needs; for a short one the manifests are fetched from a member. Anybody who has
either is admitted: it is a password. The manifests are the shortest chain from the founding one to the newest. The
length distinguishes a line that was cut from one that was mistyped.
"""

import base64
import re
import zlib
from typing import Final

from gossip.core.digests import digest_of
from gossip.core.errors import LocalError, RemoteError
from gossip.core.identity import KEY_BYTES, Identity
from gossip.core.membership_limits import (
    MAX_CERTIFICATE_BYTES,
    MAX_LINE_BYTES,
    MAX_LINE_CHARS,
    MAX_LINE_MANIFESTS,
    MAX_MANIFEST_BYTES,
)
from gossip.core.wire import malformed, pack
from gossip.membership.invite import parse_invite
from gossip.membership.invite_bundle import InviteBundle, check_parts
from gossip.membership.manifest import PSK_BYTES, parse_manifest
from gossip.membership.manifest_chain import ManifestChain
from gossip.membership.short_invite import ShortInvite, pack_short, parse_short
from gossip.membership.signed import unpack_exact

PREFIX: Final = "p2p1"
SHORT: Final = "p2p2"
CHECK_BYTES: Final = 4
_LENGTH_BYTES: Final = 3
_ANY_VERSION: Final = re.compile(r"p2p([0-9])")
_ALPHABET: Final = re.compile(r"[A-Za-z0-9_-]*")
_LEAST_CHARS: Final = 4
"""Letters that the length takes in base64."""

_BLANKS: Final = re.compile("[\\s\u00ad\u200b-\u200d\u2060\ufeff]+")
"""Characters at which mail clients and chats break a long word: white space, the soft hyphen, blanks without a
width."""

_EDGES: Final = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb<>|()[]{}*,;:.=!"
"""Characters around a line, or at the ends of its parts: quotes of text and of replies, marks of emphasis, and the `=`
with which quoted-printable breaks lines. An invite line has none of these letters."""

_WORDS: Final = b" ".join(
    each.encode("ascii")
    for each in (
        "warmup weight_decay momentum clip tokens eval checkpoint float32 bfloat16 vocab context width depth heads",
        "layers seed recipe digest corpus bytes gpt digits relay observer bootstrap trainer allow open invite_only",
        "/ip4/192.168. /ip6/ /dns4/ /tcp/4001 /udp/ /p2p/12D3KooW adaptive none topk sign1 int8 int4 fp16 bf16 q2",
        "mean trimmed_mean median krum zeno nesterov adamw sgd gossip moshpit noloco diloco strategy compressor",
        "aggregator quorum deadline_s max_staleness degree gamma tau alpha beta batch_size inner_steps inner_lr",
        "learning_rate outer optimizer rounds steps train data hash path model name task sync settings",
    )
)
"""Words that lines are likely to contain: zlib's preset dictionary, the likeliest last. It is a part of the format."""


def encode_invite_code(invitation: InviteBundle) -> str:
    """Return the full line. Raises LocalError when its parts do not belong together, or when it would be too long."""
    manifests = [each.raw for each in invitation.chain.spine()]
    packed = pack((invitation.invite.raw, invitation.secret.seed, invitation.psk or b"", manifests))
    packer = zlib.compressobj(level=9, zdict=_WORDS)
    body = packer.compress(packed) + packer.flush()
    if len(packed) > MAX_LINE_BYTES or len(body) * 4 // 3 + 16 > MAX_LINE_CHARS:
        raise LocalError("the manifest is too large for a line; a shorter allow list or fewer settings help")
    line = _framed(PREFIX, body)
    parse_invite_code(line)
    return line


def encode_short(short: ShortInvite) -> str:
    """Return the short line. Raises LocalError when its parts do not belong together."""
    line = _framed(SHORT, pack_short(short))
    parse_any(line)
    return line


def parse_any(text: str) -> InviteBundle | ShortInvite:
    """Parse a line, as it was written or as a mail has broken it (see `unwrapped`). Raises LocalError, which says what
    is wrong with it."""
    prefix, body = _body(unwrapped(text))
    try:
        return parse_short(body) if prefix == SHORT else _parse(_unpacked(body))
    except RemoteError as error:
        raise LocalError(f"the invite contradicts itself: {error.detail or error}") from error


def parse_invite_code(text: str) -> InviteBundle:
    """Parse a full line as `parse_any` does. Raises LocalError also for a short one."""
    read = parse_any(text)
    if isinstance(read, ShortInvite):
        raise LocalError("the invite is a short one: its manifests are yet to be fetched")
    return read


def _framed(prefix: str, body: bytes) -> str:
    whole = len(body).to_bytes(_LENGTH_BYTES, "big") + body
    return prefix + base64.urlsafe_b64encode(whole + _check(whole, prefix)).decode("ascii").rstrip("=")


def unwrapped(text: str) -> str:
    """Return the line from a text that may have broken it into parts, quoted it, and continued after it. A text without
    a line is returned unchanged. Raises LocalError when there are two lines."""
    if len(text) > 2 * MAX_LINE_CHARS:
        return text
    parts = [each.strip(_EDGES) for each in _BLANKS.split(text)]
    begins = next((at for at, part in enumerate(parts) if _ANY_VERSION.match(part)), None)
    if begins is None:
        return text
    line, at = parts[begins], begins + 1
    while at < len(parts) and not is_whole(line):
        line, at = line + parts[at], at + 1
    if any(_ANY_VERSION.match(part) and part != parts[begins] for part in parts[at:]):
        raise LocalError("there is more than one invite: give one of them")
    return line


def is_whole(line: str) -> bool:
    """Return whether the line has as many letters as it says."""
    letters = line[len(PREFIX) :]
    if len(letters) < _LEAST_CHARS or _ALPHABET.fullmatch(letters) is None:
        return False
    return len(letters) >= _letters_of(letters)


def _letters_of(letters: str) -> int:
    size = int.from_bytes(base64.urlsafe_b64decode(letters[:_LEAST_CHARS]), "big")
    return -(-(_LENGTH_BYTES + size + CHECK_BYTES) * 4 // 3)


def _check(whole: bytes, prefix: str = PREFIX) -> bytes:
    return digest_of(prefix.encode("ascii") + whole)[:CHECK_BYTES]


def _body(text: str) -> tuple[str, bytes]:
    """Return the form of the line, and its bytes."""
    if len(text) > 2 * MAX_LINE_CHARS or len(line := text.strip()) > MAX_LINE_CHARS:
        raise LocalError("not an invite: too long")
    version = _ANY_VERSION.match(line)
    if not line.startswith((PREFIX, SHORT)):
        if version is not None:
            raise LocalError(f"the invite is of format {version[1]}, ours are 1 and 2: a newer p2ptrain is needed")
        raise LocalError(f"not an invite: one begins with {SHORT} or {PREFIX}")
    prefix, letters = line[: len(PREFIX)], line[len(PREFIX) :]
    if _ALPHABET.fullmatch(letters) is None:
        raise LocalError("mistyped: an invite is one line of letters, digits, - and _")
    if len(letters) < _LEAST_CHARS:
        raise LocalError("the invite is cut short")
    return prefix, _checked(prefix, letters)


def _checked(prefix: str, letters: str) -> bytes:
    expected = _letters_of(letters)
    if len(PREFIX) + expected > MAX_LINE_CHARS:
        raise LocalError("mistyped, or no invite: none is as long as this one says it is")
    if len(letters) < expected:
        raise LocalError(f"the invite is cut short: {len(PREFIX) + len(letters)} of {len(PREFIX) + expected} letters")
    padded = letters + "=" * (-len(letters) % 4)
    if len(letters) > expected or len(letters) % 4 == 1:
        raise LocalError("mistyped: the invite is longer than it says")
    whole = base64.urlsafe_b64decode(padded)
    content, check = whole[:-CHECK_BYTES], whole[-CHECK_BYTES:]
    same = base64.urlsafe_b64encode(whole).decode("ascii").rstrip("=") == letters  # the last letter has spare bits
    if not same or _check(content, prefix) != check:
        raise LocalError("mistyped: the invite's checksum does not hold; copy the whole line again")
    return content[_LENGTH_BYTES:]


def _unpacked(body: bytes) -> bytes:
    """Unpack at most the bound, whatever the body claims to contain."""
    unpacker = zlib.decompressobj(zdict=_WORDS)
    try:
        packed = unpacker.decompress(body, MAX_LINE_BYTES + 1)
    except zlib.error as error:
        raise LocalError("the invite does not unpack") from error
    if len(packed) > MAX_LINE_BYTES:
        raise LocalError("the invite unpacks to more than one may hold")
    if not unpacker.eof or unpacker.unused_data:
        raise LocalError("the invite does not unpack")
    return packed


def _parse(packed: bytes) -> InviteBundle:
    fields = unpack_exact(packed, MAX_LINE_BYTES)
    invite, seed = parse_invite(fields.binary(MAX_CERTIFICATE_BYTES)), fields.exactly(KEY_BYTES)
    psk, manifests = fields.binary(PSK_BYTES), fields.array(MAX_LINE_MANIFESTS)
    fields.end()
    if not manifests.left:
        raise malformed("no manifest")
    chain = ManifestChain(parse_manifest(manifests.binary(MAX_MANIFEST_BYTES)))
    while manifests.left:
        chain.accept(parse_manifest(manifests.binary(MAX_MANIFEST_BYTES)))
    invitation = InviteBundle(invite=invite, secret=Identity(seed), chain=chain, psk=psk or None)
    check_parts(invitation)
    return invitation
