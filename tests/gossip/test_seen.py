"""Which broadcasts are remembered, and when one is passed on again."""

from gossip_samples import ALICE, BOB

from gossip.core.digests import digest_of
from gossip.updates.seen import REPEAT_S, Seen

A, B = ALICE.peer_id, BOB.peer_id
NAMES = [digest_of(b"%d" % n) for n in range(6)]


def test_one_is_passed_on_again_once_it_was_not_for_a_while():
    seen = Seen(4)
    seen.add(NAMES[0], A, 10.0)
    seen.add(NAMES[1], B, 10.0)
    assert not seen.passes_again(NAMES[0], 10.0 + REPEAT_S / 2)
    assert seen.passes_again(NAMES[0], 10.0 + REPEAT_S)
    assert not seen.passes_again(NAMES[0], 10.0 + 1.5 * REPEAT_S)
    assert seen.passes_again(NAMES[1], 10.0 + 1.5 * REPEAT_S)
    assert seen.passes_again(NAMES[0], 10.0 + 2 * REPEAT_S)


def test_the_newest_are_remembered_with_who_signed_them():
    seen = Seen(4)
    for n, name in enumerate(NAMES):
        seen.add(name, (A, B)[n % 2], 0.0)
    assert [seen.signer(name) for name in NAMES] == [None, None, A, B, A, B]
    assert len(seen) == 4


def test_times_are_kept_of_those_that_were_passed_on_just_now():
    seen = Seen(4096)
    for n in range(1000):
        seen.add(digest_of(b"%d" % n), A, n * REPEAT_S / 8)
        assert len(seen._lately) <= 8
    for n in range(1000):  # all at once, and more than are remembered
        seen.add(digest_of(b"at once %d" % n), A, 1000.0)
    assert len(seen._lately) == 1000
    few = Seen(4)
    for name in NAMES:
        few.add(name, A, 0.0)
    assert len(few._lately) == 4
