import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity, peer_id_of, verify, verify_key_of
from gossip.core.ids import PeerId


@given(st.binary(min_size=32, max_size=32))
def test_a_peer_id_is_its_key(seed):
    one = Identity(seed)
    assert verify_key_of(one.peer_id) == one.public_key
    assert one.peer_id.startswith("12D3Koo")
    assert one.seed == seed


def test_libp2p_derives_the_same_id():
    ed25519 = pytest.importorskip("libp2p.crypto.ed25519")
    peer_id = pytest.importorskip("libp2p.peer.id")
    one = Identity(b"\x07" * 32)
    assert str(peer_id.ID.from_pubkey(ed25519.Ed25519PublicKey.from_bytes(one.public_key))) == one.peer_id


@given(
    st.text(max_size=60)
    | st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", min_size=52, max_size=52)
)
def test_other_text_is_no_peer_id(text):
    try:
        key = verify_key_of(PeerId(text))
    except RemoteError:
        return
    assert peer_id_of(key) == text


def test_a_peer_id_has_one_spelling():
    name = Identity(b"\x07" * 32).peer_id
    for spelling in (name + " ", " " + name, name[:-1], name[:-1] + "\n"):
        with pytest.raises(RemoteError):
            verify_key_of(PeerId(spelling))


def test_signatures():
    one, other = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
    signature = one.sign(b"words")
    verify(one.public_key, b"words", signature)
    for key, words, by in ((other, b"words", signature), (one, b"word", signature), (one, b"words", signature[:-1])):
        with pytest.raises(RemoteError) as caught:
            verify(key.public_key, words, by)
        assert caught.value.reason is Reason.FORGED


def test_a_key_is_made_once_and_kept_private(tmp_path):
    path = tmp_path / "new" / "identity"
    first = Identity.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load_or_create(path).peer_id == first.peer_id
    assert [it.name for it in path.parent.iterdir()] == ["identity"]


def test_every_truncation_of_the_file_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "identity"
    Identity.load_or_create(path)
    whole = path.read_bytes()
    for text in [whole[:size] for size in range(len(whole))] + [whole + b"\n", whole.replace(b"\n", b"!")]:
        path.write_bytes(text)
        with pytest.raises(LocalError, match="delete it"):
            Identity.load_or_create(path)
        assert path.read_bytes() == text


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot write the identity file"):
        Identity.load_or_create(tmp_path / "file" / "identity")


def test_the_seed_does_not_show(tmp_path):
    one = Identity(b"\x07" * 32)
    assert one.seed.hex() not in repr(one)
