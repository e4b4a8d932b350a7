"""A plug-in codec may refuse a payload for a reason that the network does not know: that ends no node."""

import hashlib
from pathlib import Path

import pytest
import torch
import trio
import trio.testing
from sim_swarm import swarm

from gossip.core.errors import Reason
from p2ptrain import compress
from p2ptrain.compress.base import PayloadError
from p2ptrain.compress.dense import Dense

ROUNDS = 6


class WordlessError(PayloadError):
    """Of a plug-in that forgot to call its base."""

    def __init__(self) -> None:
        ValueError.__init__(self, "wordless")


class Picky(Dense):
    """Reads what it wrote itself, and refuses the same bytes to everybody else."""

    name = "picky"
    offence: PayloadError
    seen: set[bytes]

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        digest = hashlib.blake2b(payload).digest()
        if digest in self.seen:
            raise self.offence
        self.seen.add(digest)
        return super().decode(payload, numel)


@pytest.mark.parametrize(
    ("offence", "reason", "detail"),
    [
        (PayloadError("too_loud", "beyond eleven"), Reason.MALFORMED, "too_loud: beyond eleven"),
        pytest.param(
            PayloadError("wrong_shape", "of a known reason"), Reason.WRONG_SHAPE, "", marks=pytest.mark.thorough
        ),
        (WordlessError(), Reason.MALFORMED, "wordless"),
        pytest.param(PayloadError("x" * 10_000, ""), Reason.MALFORMED, "x" * 200, marks=pytest.mark.thorough),
    ],
    ids=["unknown", "known", "wordless", "long"],
)
async def test_a_reason_that_nobody_knows_is_malformed_and_ends_no_node(
    offence: PayloadError,
    reason: Reason,
    detail: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    monkeypatch.setitem(compress.COMPRESSORS._factories, "picky", Picky)
    monkeypatch.setattr(Picky, "offence", offence, raising=False)
    monkeypatch.setattr(Picky, "seen", set(), raising=False)
    async with swarm(tmp_path) as members:
        for number in range(3):
            codec = "picky" if number == 2 else "none"
            await members.start(
                f"n{number}", wait_for=2, train={"rounds": ROUNDS}, sync={"compressor": codec, "gamma": 1.0}
            )
        await members.finished()
        picky = members.members["n2"].node.peer_id
        for name in ("n0", "n1"):
            member = members.members[name]
            assert member.told("round")[-1]["round"] == ROUNDS
            refused = [fields for fields in member.told("rejected") if fields["peer"] == picky]
            assert refused
            assert {(fields["reason"], fields["detail"]) for fields in refused} == {(reason, detail)}
