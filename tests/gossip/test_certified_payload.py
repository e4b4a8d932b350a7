"""Certificates of payloads: whose signatures count, and what liars among the signers can do."""

import random

from hypothesis import given
from hypothesis import strategies as st

from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.ids import PeerId
from gossip.core.statements import UpdateHeader, UpdateHeaderBody
from gossip.updates.certified_payload import CertifiedPayload, PayloadQuorum

PEERS = tuple(PeerId(f"peer{place}") for place in range(7))
THRESHOLD = 5
TRUE, FALSE = digest_of(b"true"), digest_of(b"false")


def wanted() -> PayloadQuorum:
    return PayloadQuorum(peers=PEERS, round=3, codec="secure_sum", size=100, threshold=THRESHOLD)


def link(
    peer: PeerId, address: bytes = TRUE, *, round: int = 3, codec: str = "secure_sum", size: int = 100
) -> UpdateHeader:
    body = UpdateHeaderBody(round=round, kind="delta", codec=codec, size=size)
    return UpdateHeader(
        peer=peer, epoch=0, seq=1, digest=NO_DIGEST, prev=NO_DIGEST, address=address, body=body, raw=b""
    )


def test_as_many_alike_as_the_threshold_certify() -> None:
    certified = CertifiedPayload(wanted())
    certified.learn({peer: link(peer) for peer in PEERS[:4]})
    assert not certified.signers
    certified.learn({PEERS[4]: link(PEERS[4])})
    assert certified.signers == {TRUE: list(PEERS[:5])}


def test_links_of_other_rounds_codecs_sizes_and_peers_count_for_nothing() -> None:
    certified = CertifiedPayload(wanted())
    certified.learn({peer: link(peer) for peer in PEERS[:4]})
    for wrong in ({"round": 4}, {"codec": "met"}, {"size": 99}):
        certified.learn({PEERS[4]: link(PEERS[4], **wrong)})  # type: ignore[arg-type]
    stranger = PeerId("stranger")
    certified.learn({stranger: link(stranger), PEERS[5]: None})
    assert not certified.signers


def test_the_first_link_of_a_round_counts() -> None:
    certified = CertifiedPayload(wanted())
    certified.learn({peer: link(peer, FALSE) for peer in PEERS[:3]})
    certified.learn({peer: link(peer, TRUE) for peer in PEERS})
    assert not certified.signers, "three have signed another one before, and four are too few"


def test_who_enters_the_round_may_still_sign_it() -> None:
    """A chain begins with a link that names the round that is entered."""
    certified = CertifiedPayload(wanted())
    body = UpdateHeaderBody(round=3, kind="genesis", genesis=NO_DIGEST)
    for peer in PEERS:
        base = UpdateHeader(
            peer=peer, epoch=0, seq=0, digest=NO_DIGEST, prev=NO_DIGEST, address=NO_DIGEST, body=body, raw=b""
        )
        certified.learn({peer: base})
    assert not certified.is_hopeless(PEERS)
    certified.learn({peer: link(peer) for peer in PEERS})
    assert certified.signers


def test_it_is_given_up_when_too_few_can_sign_alike() -> None:
    certified = CertifiedPayload(wanted())
    assert not certified.is_hopeless(PEERS)
    assert certified.is_hopeless(PEERS[:4])
    later = CertifiedPayload(wanted())
    later.learn({peer: link(peer, round=4) for peer in PEERS[:3]})
    assert later.is_hopeless(PEERS), "who is further on signs nothing of this round"
    marked = CertifiedPayload(wanted())
    marked.learn({peer: link(peer, codec="met", size=1) for peer in PEERS[:3]})
    assert marked.is_hopeless(PEERS), "who has closed the round with a mark has no sum to sign"
    certified.learn({peer: link(peer, FALSE) for peer in PEERS[:2]})
    assert not certified.is_hopeless(PEERS)
    certified.learn({PEERS[2]: link(PEERS[2], digest_of(b"other"))})
    certified.learn({peer: link(peer) for peer in PEERS[3:5]})
    assert certified.is_hopeless(PEERS), "two more make four"


@given(st.integers(0, 2**32 - 1))
def test_fewer_liars_than_the_threshold_certify_nothing_false(seed: int) -> None:
    """They sign what they like, change it, and are silent, in any order among the honest ones."""
    rng = random.Random(seed)
    liars = rng.sample(PEERS, rng.randrange(THRESHOLD))
    certified = CertifiedPayload(wanted())
    for _ in range(30):
        peer = rng.choice(PEERS)
        address = rng.choice([TRUE, FALSE]) if peer in liars else TRUE
        certified.learn({peer: link(peer, address)})
        assert set(certified.signers) <= {TRUE}
    honest = [peer for peer in PEERS if peer not in liars]
    certified.learn({peer: link(peer) for peer in honest})
    assert bool(certified.signers) or len(honest) < THRESHOLD
