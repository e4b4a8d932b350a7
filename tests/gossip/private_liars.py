"""Members of a private swarm whose code is not honest: they are let in, and say what a test wants."""

from dataclasses import dataclass

import trio
from gossip_liars import Liar, refused
from gossip_swarm import RUN, FakeRuntime, identity
from private_swarm import SWARM, PrivateSwarm

from gossip.core.digests import NO_DIGEST
from gossip.core.envelope import Scope
from gossip.core.errors import Reason
from gossip.core.limits import KIB
from gossip.core.member_messages import Known, MembershipRequest, known_fields
from gossip.core.messages import Hello, Request, encode_answer, parse_empty_answer, parse_known_answer
from gossip.membership import pack_item
from gossip.membership.anti_entropy import AntiEntropy
from gossip.membership.certificate import Certificate
from gossip.membership.roster_sync import paged
from gossip.session import ask_once

NOTHING = Known(roster=NO_DIGEST, version=1, manifest=NO_DIGEST)
OURS = Scope(swarm=SWARM, run=RUN.run_id)


@dataclass
class Insider(Liar):
    """A liar with a membership."""

    record: bytes = b""
    records: tuple[bytes, ...] = ()
    known: Known = NOTHING

    def hello(self) -> bytes:
        return Hello(
            scope=OURS,
            genesis=RUN.genesis,
            neighbours=1,
            admitted=True,
            link=self.link,
            record=self.record,
            records=self.records,
        ).encode()

    async def asks(self, node: FakeRuntime, request: Request) -> None:
        """Ask for something that is granted with nothing. Raises Refused."""
        parse_empty_answer(await ask_once(self.transport, node.peer, request, 10.0, KIB))

    async def tells(self, node: FakeRuntime, *items: bytes) -> None:
        """News, in as many pages as they take. Raises Refused."""
        for page in paged(items):
            request = MembershipRequest.of(self.known, page)
            parse_known_answer(await ask_once(self.transport, node.peer, request, 10.0, KIB))


async def insider(
    it: PrivateSwarm, nursery: trio.Nursery, number: int, shown: Certificate | None = None, **granted: object
) -> Insider:
    """One that runs, and knows what an honest member knows at its start; it answers as if that were all, for ever."""
    it.enroll(number, shown, **granted)
    private, key = it.private(number), identity(number)
    liar = Insider(key, it.network.attach(key.peer_id, private.admission))
    liar.known = AntiEntropy(private.admission).known()

    def answer(request: Request) -> bytes | None:
        return encode_answer(*known_fields(liar.known)) if isinstance(request, MembershipRequest) else None

    liar.answer = answer
    await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
    return liar


def reasons(node: FakeRuntime, liar: Liar) -> dict[Reason, int]:
    """Why a node has refused the liar, and how often."""
    return {reason: times for (peer, reason), times in node.service.stats.rejected.items() if peer == liar.peer}


def items(*shown: Certificate) -> list[bytes]:
    return [pack_item(each) for each in shown]


__all__ = ["OURS", "Insider", "insider", "items", "reasons", "refused"]
