"""The line that a newcomer pastes: all of it comes back, and whatever happens to it is said clearly."""

import base64
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples
from swarms import (
    ADMIN,
    ADMINS,
    CHAIN,
    NOW,
    PSK,
    SWARM,
    Door,
    after,
    chain_of,
    invite,
    line_parts,
    peer,
    secret,
    terms,
)

from gossip.core.errors import LocalError, RemoteError
from gossip.core.identity import verify_key_of
from gossip.core.membership_limits import MAX_LINE_BYTES, MAX_LINE_CHARS, MAX_USES
from gossip.core.wire import pack
from gossip.membership import (
    InviteBundle,
    ManifestChain,
    Policy,
    Role,
    appoint,
    create_manifest,
    encode_invite_code,
    make_invite,
    parse_invite_code,
    psk_fingerprint,
)
from gossip.membership import invite_code as lines
from gossip.membership.invite import parse_appointment, parse_invite
from gossip.membership.signed import SignedKind, sign

LINE = encode_invite_code(line_parts())
REGIONS = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,30}[a-z0-9])?", fullmatch=True)
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=64)


def of_body(body: bytes) -> str:
    """A line with a right length and checksum around any body."""
    whole = len(body).to_bytes(3, "big") + body
    return lines.PREFIX + base64.urlsafe_b64encode(whole + lines._check(whole)).decode().rstrip("=")


def packed(value: object) -> str:
    packer = zlib.compressobj(zdict=lines._WORDS)
    return of_body(packer.compress(pack(value)) + packer.flush())


def same(one: InviteBundle, other: InviteBundle) -> bool:
    return (one.invite, one.secret.seed, list(one.chain), one.psk) == (
        other.invite,
        other.secret.seed,
        list(other.chain),
        other.psk,
    )


@given(
    st.sampled_from(Role),
    ASCII,
    st.integers(0, 2**50),
    st.none() | st.integers(1, 2**50),
    st.none() | st.integers(1, MAX_USES),
    st.just("") | REGIONS,
)
def test_invites_come_back(role, name, issued_at, lasts, uses, region):
    expires = None if lasts is None else issued_at + lasts
    how = {"role": role, "name": name, "issued_at": issued_at, "expires": expires, "region": region}
    made = make_invite(ADMIN, SWARM, secret(), uses=uses, **how)
    assert parse_invite(made.raw) == made
    assert (made.role, made.name, made.issued_at, made.expires, made.uses) == (role, name, issued_at, expires, uses)
    named = appoint(ADMIN, SWARM, peer(1).peer_id, **how)
    assert parse_appointment(named.raw) == named
    assert made.region == named.region == region


def test_a_grant_without_a_region_is_what_it_was():
    """Byte for byte, as it was signed before regions could be bound."""
    fields = (SWARM, secret().public_key, "trainer", "a", NOW, 0, 1)
    made = make_invite(ADMIN, SWARM, secret(), role=Role.TRAINER, name="a", issued_at=NOW)
    assert made.raw == sign(SignedKind.INVITE, fields, ADMIN)
    assert parse_invite(made.raw).region == ""


@pytest.mark.parametrize("label", ["", "West", "-", "r" * 33, 7])
def test_a_region_that_is_none_makes_a_grant_malformed(label):
    invited = (SWARM, secret().public_key, "trainer", "a", NOW, 0, 1, label)
    named = (SWARM, verify_key_of(peer(1).peer_id), "trainer", "a", NOW, 0, label)
    for parse, kind, fields in (
        (parse_invite, SignedKind.INVITE, invited),
        (parse_appointment, SignedKind.APPOINTMENT, named),
    ):
        with pytest.raises(RemoteError, match=r"malformed|oversize"):
            parse(sign(kind, fields, ADMIN))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "n" * 65},
        {"name": "bell\x07"},
        {"name": "\u202egnp"},
        {"uses": MAX_USES + 1},
        {"uses": -1},
        {"expires": NOW},
        {"issued_at": -1},
        {"region": "West"},
        {"region": "r" * 33},
    ],
    ids=str,
)
def test_invites_out_of_bounds(wrong):
    with pytest.raises(LocalError):
        make_invite(ADMIN, SWARM, secret(), **{"role": Role.RELAY, "issued_at": NOW, **wrong})


@pytest.mark.parametrize("psk", [None, PSK])
@pytest.mark.parametrize("versions", [1, 2, 5])
def test_a_line_holds_all_that_a_newcomer_needs(psk, versions):
    fingerprint = None if psk is None else psk_fingerprint(psk)
    chain = chain_of(psk_fingerprint=fingerprint)
    for _ in range(versions - 1):
        chain.accept(after(chain, ADMIN, psk_fingerprint=fingerprint))
    parts = line_parts(chain, psk)
    read = parse_invite_code(encode_invite_code(parts))
    assert read.chain.newest == chain.newest
    assert list(read.chain) == list(chain.spine())
    assert (read.invite, read.secret.seed, read.psk) == (parts.invite, parts.secret.seed, psk)


def test_a_line_is_redeemed_and_opens_the_door():
    guest = peer(5)
    read = parse_invite_code(f"\n  {LINE}\t\r\n")
    shown = read.redeem(guest.peer_id, issued_at=NOW, nonce=b"n" * 16)
    assert read.secret.seed not in shown.raw
    assert Door().refusal(guest.peer_id, shown) is None


def test_a_typical_line_is_short():
    chain = chain_of(policy=Policy.INVITE_ONLY)
    assert len(encode_invite_code(line_parts(chain))) < 900
    chain.accept(after(chain, ADMIN))
    assert len(encode_invite_code(line_parts(chain))) < 1100


def test_the_secret_does_not_show():
    read = parse_invite_code(LINE)
    assert repr(read.secret) not in repr(read)
    assert read.secret.seed.hex() not in repr(read)


def test_every_truncation_is_named():
    for size in range(len(LINE)):
        with pytest.raises(LocalError, match="cut short" if size >= 4 else "not an invite"):
            parse_invite_code(LINE[:size])


def test_every_mistyped_letter_is_refused():
    for at in range(len(LINE)):
        for letter in ("A" if LINE[at] != "A" else "B", "-", " ", "\u00e9"):
            if letter != LINE[at]:
                with pytest.raises(LocalError):
                    parse_invite_code(LINE[:at] + letter + LINE[at + 1 :])


def test_the_last_letter_has_one_spelling_too():
    """Where the bytes do not fill it, some of its bits mean nothing."""
    made = [InviteBundle(invite=invite(name="n" * size), secret=secret(), chain=CHAIN) for size in range(8)]
    texts = [encode_invite_code(each) for each in made]
    assert {len(text) % 4 for text in texts} & {2, 3}
    for text in texts:
        for letter in set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") - {text[-1]}:
            with pytest.raises(LocalError):
                parse_invite_code(text[:-1] + letter)


def test_every_single_bit_of_a_line_counts():
    whole = base64.urlsafe_b64decode(LINE[4:] + "=" * (-len(LINE[4:]) % 4))
    for bit in range(8 * len(whole)):
        hurt = bytearray(whole)
        hurt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LocalError):
            parse_invite_code(lines.PREFIX + base64.urlsafe_b64encode(hurt).decode().rstrip("="))


def line_of_another() -> str:
    other = chain_of(nonce=b"m" * 16)
    return encode_invite_code(line_parts(other))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not an invite"),
        ("hello", "not an invite"),
        ("p2p", "not an invite"),
        ("p2p3" + LINE[4:], "newer p2ptrain"),
        (LINE + "A", "longer than it says"),
        (LINE + LINE, "longer than it says"),
        (LINE[:40] + "\n*" + LINE[41:], "cut short"),
        (LINE + "\n" + line_of_another(), "more than one invite"),
        (LINE[:40] + "=" + LINE[41:], "one line"),
        (LINE.swapcase(), "not an invite"),
        ("p2p1A" + LINE[5:].swapcase(), "none is as long"),
        ("p2p1garbage", "none is as long"),
        ("x" * (2 * MAX_LINE_CHARS + 1), "too long"),
        ("p2p1" + "A" * MAX_LINE_CHARS, "too long"),
        (of_body(b""), "does not unpack"),
        (of_body(zlib.compress(b"other words")), "contradicts"),
        (packed([]), "contradicts"),
    ],
    ids=range(17),
)
def test_what_is_wrong_is_said(text, said):
    with pytest.raises(LocalError, match=said):
        parse_invite_code(text)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(LINE[at : at + 76] for at in range(0, len(LINE), 76)),
        "\r\n".join(LINE[at : at + 76] for at in range(0, len(LINE), 76)) + "\r\n",
        "=\n".join(LINE[at : at + 75] for at in range(0, len(LINE), 75)),
        "".join(f"> {LINE[at : at + 70]}\n" for at in range(0, len(LINE), 70)),
        "".join(f">> {LINE[at : at + 70]}\n" for at in range(0, len(LINE), 70)),
        " ".join(LINE[at : at + 5] for at in range(0, len(LINE), 5)),
        "\u200b".join(LINE[at : at + 60] for at in range(0, len(LINE), 60)),
        f'"{LINE}"',
        f"\u201c{LINE}\u201d",
        f"`{LINE}`",
        f"<{LINE}>.",
        f"Hello,\n\nyour invite:\n\n  {LINE[:300]}\n  {LINE[300:]}\n\nSee you there,\nCarol\n-- \nby phone",
        f"\ufeff{LINE}\u00a0",
        f"{LINE} {LINE}",
    ],
    ids=range(14),
)
def test_what_mails_make_of_a_line_is_the_line(text):
    assert encode_invite_code(parse_invite_code(text)) == LINE


@pytest.mark.slow
def test_a_line_cannot_blow_up():
    packer = zlib.compressobj(9, zdict=lines._WORDS)
    bomb = packer.compress(bytes(60 * 2**20)) + packer.flush()
    assert len(bomb) < MAX_LINE_CHARS
    with pytest.raises(LocalError, match="more than one may hold"):
        parse_invite_code(of_body(bomb))
    assert MAX_LINE_BYTES < 60 * 2**20


def test_bytes_behind_the_body_or_an_unfinished_one():
    packer = zlib.compressobj(zdict=lines._WORDS)
    body = packer.compress(pack(())) + packer.flush()
    for hurt in (body + b"\x00", body[:-1]):
        with pytest.raises(LocalError, match="does not unpack"):
            parse_invite_code(of_body(hurt))


def test_parts_must_belong_together():
    chain = chain_of(nonce=b"m" * 16)
    keyed = ManifestChain(create_manifest(terms(psk_fingerprint=psk_fingerprint(PSK)), bytes(16)).signed_by(ADMIN))
    for wrong in (
        InviteBundle(invite=invite(), secret=secret(), chain=chain),
        InviteBundle(invite=invite(), secret=secret(1), chain=CHAIN),
        InviteBundle(invite=invite(admin=ADMINS[1]), secret=secret(), chain=CHAIN),
        InviteBundle(invite=invite(), secret=secret(), chain=CHAIN, psk=PSK),
        InviteBundle(invite=invite(chain=keyed), secret=secret(), chain=keyed),
        InviteBundle(invite=invite(chain=keyed), secret=secret(), chain=keyed, psk=b"\x01" * 32),
    ):
        with pytest.raises(LocalError, match="contradicts"):
            encode_invite_code(wrong)


@pytest.mark.slow
def test_a_manifest_that_is_too_large_is_named():
    noise = {str(at): "".join(peer(at * 100 + each).peer_id for each in range(60)) for at in range(5)}
    peers = frozenset(peer(each).peer_id for each in range(1024))
    chain = chain_of(policy=Policy.ALLOW, allow=peers, settings=noise)
    encode_invite_code(line_parts(chain))
    for version in range(4):
        changed = {**noise, "0": "".join(peer(1000 * version + each).peer_id for each in range(70))}
        admins = (ADMINS[version % 2],)
        signer = ADMINS[(version + 1) % 2] if version else ADMIN
        others = frozenset(peer(9000 * version + each).peer_id for each in range(1024))
        chain.accept(after(chain, signer, admins=admins, policy=Policy.ALLOW, allow=others, settings=changed))
    with pytest.raises(LocalError, match="too large for a line"):
        encode_invite_code(InviteBundle(invite=invite(admin=ADMINS[1], chain=chain), secret=secret(), chain=chain))


@given(st.text(max_size=300))
@settings(max_examples=examples(300))
def test_any_text_is_refused(text):
    with pytest.raises(LocalError):
        parse_invite_code(text)
    with pytest.raises(LocalError):
        parse_invite_code("p2p1" + text)
