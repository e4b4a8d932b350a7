"""Keys under a passphrase, and the files they lie in."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.pwhash import argon2id

from gossip.core import keyfile
from gossip.core.errors import LocalError
from gossip.core.keyfile import Cost, is_sealed, seal, unseal
from gossip.core.wire import pack
from gossip.membership import Authority

CHEAP = Cost(operations=argon2id.OPSLIMIT_MIN, memory_bytes=argon2id.MEMLIMIT_MIN)
SALT, NONCE = b"s" * 16, b"n" * 24
SEALED = seal(b"\x01" * 32, b"words", purpose="authority", salt=SALT, nonce=NONCE, cost=CHEAP)


def opened(data: bytes, passphrase: bytes = b"words", purpose: str = "authority") -> bytes:
    return unseal(data, passphrase, purpose=purpose)


@given(st.binary(max_size=keyfile.MAX_SECRET_BYTES), st.binary(min_size=1, max_size=60))
def test_secrets_come_back(secret, passphrase):
    data = seal(secret, passphrase, purpose="identity", salt=SALT, nonce=NONCE, cost=CHEAP)
    assert opened(data, passphrase, "identity") == secret
    assert is_sealed(data)
    assert len(data) <= len(keyfile.HEADER) + keyfile.MAX_SEALED_BYTES
    with pytest.raises(LocalError, match="passphrase is wrong"):
        opened(data, passphrase + b"!", "identity")


def test_a_key_for_another_purpose():
    with pytest.raises(LocalError, match="another purpose"):
        opened(SEALED, purpose="identity")


def test_every_bit_and_every_truncation_counts():
    for bit in range(8 * len(SEALED)):
        hurt = bytearray(SEALED)
        hurt[bit // 8] ^= 1 << bit % 8
        # Where the flip makes the file dearer than the test has time for, it is the bounds' turn (below).
        if bit // 8 in range(len(keyfile.HEADER) + 1, len(keyfile.HEADER) + 6):
            continue
        with pytest.raises(LocalError):
            opened(bytes(hurt))
    for size in range(len(SEALED)):
        with pytest.raises(LocalError):
            opened(SEALED[:size])


@pytest.mark.parametrize("cost", [(0, 8192), (17, 8192), (2**32, 8192), (1, 0), (1, 8191), (1, 2**30 + 1), (1, 2**52)])
def test_a_hostile_file_gets_no_memory(cost, monkeypatch):
    def never(*args: object, **kwargs: object) -> bytes:
        raise AssertionError("the key was derived")

    monkeypatch.setattr(argon2id, "kdf", never)
    with pytest.raises(LocalError):
        opened(keyfile.HEADER + pack((*cost, SALT, NONCE, bytes(60))))


def test_the_default_is_libsodiums_moderate(tmp_path, monkeypatch):
    asked = []

    def kdf(size: int, passphrase: bytes, salt: bytes, *, opslimit: int, memlimit: int) -> bytes:
        asked.append((opslimit, memlimit))
        return bytes(size)

    monkeypatch.setattr(argon2id, "kdf", kdf)
    Authority(b"\x01" * 32).save(tmp_path / "key", b"words")
    Authority.load(tmp_path / "key", b"words")
    assert asked == 2 * [(3, 256 * 2**20)]


@pytest.mark.parametrize("wrong", [{"passphrase": b""}, {"passphrase": b"x" * 1025}, {"secret": bytes(257)}])
def test_what_cannot_be_sealed(wrong):
    with pytest.raises(LocalError):
        seal(
            **{
                "secret": b"s",
                "passphrase": b"p",
                "purpose": "test",
                "salt": SALT,
                "nonce": NONCE,
                "cost": CHEAP,
                **wrong,
            }
        )


def test_no_memory_is_said(monkeypatch):
    def fails(*args: object, **kwargs: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(argon2id, "kdf", fails)
    with pytest.raises(LocalError, match="bytes of memory are needed"):
        opened(SEALED)


def test_an_authority_is_kept_private_and_never_overwritten(tmp_path):
    path = tmp_path / "swarm" / "authority.key"
    key = Authority.generate()
    key.save(path, b"words", cost=CHEAP)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Authority.load(path, b"words").public_key == key.public_key
    with pytest.raises(LocalError, match="not overwritten"):
        Authority.generate().save(path, b"words", cost=CHEAP)
    key.save(path, b"other words", cost=CHEAP, replace=True)
    assert Authority.load(path, b"other words").public_key == key.public_key
    assert [it.name for it in path.parent.iterdir()] == [path.name]
    assert key.public_key.hex() in repr(key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o660, 0o644])
def test_a_key_that_others_may_open_is_refused(tmp_path, mode):
    path = tmp_path / "authority.key"
    Authority.generate().save(path, b"words", cost=CHEAP)
    path.chmod(mode)
    with pytest.raises(LocalError, match=f"chmod 600 {path}"):
        Authority.load(path, b"words")


def test_files_that_are_no_authority_are_named(tmp_path):
    path = tmp_path / "key"
    with pytest.raises(LocalError, match=f"cannot read the authority key {path}"):
        Authority.load(path, b"words")
    path.touch(mode=0o600)
    for data in (b"", b"junk", bytes(10_000), SEALED[:-1]):
        path.write_bytes(data)
        with pytest.raises(LocalError, match=f"the authority key {path}"):
            Authority.load(path, b"words")
    short = seal(b"short", b"words", purpose="authority", salt=SALT, nonce=NONCE, cost=CHEAP)
    path.write_bytes(short)
    with pytest.raises(LocalError, match="32 bytes"):
        Authority.load(path, b"words")
