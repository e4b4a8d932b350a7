"""Pre-shared keys of private networks: the cipher against libsodium's, in any pieces; the key file; the fingerprint."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nacl.bindings import crypto_secretbox

from gossip.core.errors import LocalError
from gossip.transport.pnet import KEY_BYTES, NONCE_BYTES, PnetStream, PresharedKey, XSalsa20

MAC_BYTES = 16
POLY_KEY_BYTES = 32
"""libsodium's secretbox takes the first 32 bytes of the stream for its authenticator's key."""

RUST = b"/key/swarm/psk/1.0.0/\n/base16/\n6189c5cf0b87fb800c1a9feeda73c6ab5e998db48fb9e6a978575c770ceef683"
"""The key of rust-libp2p's own test, and below its fingerprint there."""

keys = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)


def libsodium(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """`data` under XSalsa20 from its 33rd byte on."""
    return bytes(crypto_secretbox(data, nonce, key)[MAC_BYTES:])


@given(key=keys, nonce=nonces, data=st.binary(max_size=700), cuts=st.lists(st.integers(0, 150), max_size=12))
@example(key=bytes(32), nonce=bytes(24), data=bytes(640), cuts=[63, 1, 64, 65, 0, 31, 33])
def test_the_stream_is_that_of_libsodium_wherever_it_is_cut(key, nonce, data, cuts):
    stream, got, at = XSalsa20(key, nonce), b"", 0
    stream.xor(bytes(POLY_KEY_BYTES))
    for number, size in enumerate([*cuts, len(data)]):
        piece = bytearray(data[at : at + size])
        at += len(piece)
        if number % 2:
            stream.xor_in_place(memoryview(piece))
            got += piece
        else:
            got += stream.xor(piece)
    assert got == libsodium(key, nonce, data)


@given(
    pieces=st.lists(st.binary(max_size=200), max_size=8),
    cuts=st.lists(st.integers(1, 90), max_size=20),
)
def test_what_was_hidden_is_shown_in_whatever_pieces_it_comes(pieces, cuts):
    key = PresharedKey(bytes(range(KEY_BYTES)))
    one, other = PnetStream(key), PnetStream(key)
    wire = b""
    for piece in pieces:
        wire += one.hidden(piece)
    shown = b""
    for size in [*cuts, len(wire)]:
        part, wire = wire[:size], wire[size:]
        shown += other.shown(part)
    assert shown == b"".join(pieces)


def test_each_connection_and_direction_has_a_stream_of_its_own():
    key = PresharedKey.generate()
    hidden = {bytes(PnetStream(key).hidden(bytes(32))) for _ in range(50)}
    assert len({it[:NONCE_BYTES] for it in hidden}) == len({it[NONCE_BYTES:] for it in hidden}) == 50


def test_the_fingerprint_is_that_of_rust_libp2p():
    assert PresharedKey.parse(RUST).fingerprint == "45fc986bbc9388a11d939df26f730f0c"


def test_a_key_file_is_read_back_and_only_its_owner_can(tmp_path):
    path, key = tmp_path / "swarm.key", PresharedKey.generate()
    key.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert PresharedKey.read(path) == key
    assert path.read_bytes() == key.text()
    with pytest.raises(LocalError, match="is there already"):
        PresharedKey.generate().write(path)
    assert PresharedKey.read(path) == key
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(LocalError, match="chmod 600"):
            PresharedKey.read(path)


def test_a_file_that_is_none_is_refused_by_name(tmp_path):
    path = tmp_path / "swarm.key"
    with pytest.raises(LocalError, match=r"swarm\.key"):
        PresharedKey.read(path)
    path.write_bytes(RUST + b"\n\n")
    path.chmod(0o600)
    with pytest.raises(LocalError, match="64 hex digits") as error:
        PresharedKey.read(path)
    assert "6189c5" not in str(error.value)


def test_a_key_is_not_in_its_words():
    key = PresharedKey.parse(RUST)
    assert "6189c5" not in repr(key) + str(key)
    assert key.fingerprint in repr(key)
    with pytest.raises(LocalError, match="32 bytes"):
        PresharedKey(bytes(31))


@given(st.binary(max_size=120))
@example(RUST[:-1])
@example(RUST + b"0")
@example(RUST.replace(b"\n", b"\r\n"))
@example(RUST.replace(b"base16", b"base64"))
@example(RUST[:-1] + "\u0665".encode())
def test_bytes_that_are_no_key_are_refused(text):
    with pytest.raises(LocalError):
        PresharedKey.parse(text)


@given(key=keys, at=st.integers(0, 95), byte=st.integers(0, 255))
def test_a_changed_file_is_another_key_or_none(key, at, byte):
    text = bytearray(PresharedKey(key).text())
    text[at] = byte
    try:
        read = PresharedKey.parse(bytes(text))
    except LocalError:
        return
    assert read.text().lower() == bytes(text).lower()
