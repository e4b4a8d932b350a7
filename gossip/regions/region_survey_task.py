"""Asks members for their regions and measures the round trips to them, before a newcomer has a region itself.

It speaks over a transport of its own, which ends with it, as somebody who only asks: a hello for the record of a peer
and for those of others, and pings, which every libp2p host answers.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Final

import trio

from gossip.core.envelope import EnvelopeKind, Scope, open_from
from gossip.core.errors import GossipError, Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import MAX_HELLO_BYTES
from gossip.core.messages import Hello, HelloRequest, parse_bytes_answer, parse_hello
from gossip.core.statements import parse_record
from gossip.discovery.lookup import records_in
from gossip.regions.region_choice import RegionSurvey
from gossip.session import ask_once
from gossip.transport.base import PING_BYTES, PING_PROTOCOL, Stream, Transport
from gossip.transport.client_handlers import ClientHandlers

PINGS: Final = 5
"""Round trips of one member that are measured one after another; their median counts. Chosen: two may be late."""

AT_ONCE: Final = 4
"""Peers that are asked at once: as many as a node dials, so that they do not wait for each other."""

STEP_S: Final = 4.0
"""Seconds for a dial, for a hello, and for all pings of a member."""

WITHIN_S: Final = 20.0
"""Seconds for all of it. Chosen: peers that are gone take four each and address, four at a time."""


@dataclass(frozen=True, kw_only=True)
class SurveyedRun:
    """The run whose members are asked."""

    scope: Scope
    genesis: Digest


async def run_survey(
    survey: RegionSurvey, transport: Transport, run: SurveyedRun, random_bytes: Callable[[int], bytes]
) -> None:
    """Ask until nobody is left, or for `WITHIN_S`; `transport` runs meanwhile. Raises LocalError where it cannot."""
    asking = _RegionQuestions(survey, transport, run, random_bytes)
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run, ClientHandlers(keeps_peers=True))
        with trio.move_on_after(WITHIN_S):
            await asking.all()
        nursery.cancel_scope.cancel()


class _RegionQuestions:
    def __init__(
        self, survey: RegionSurvey, transport: Transport, run: SurveyedRun, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._survey = survey
        self._transport = transport
        self._run = run
        self._random_bytes = random_bytes
        self._under_way = 0

    async def all(self) -> None:
        """Ask one after another, some at a time, until nobody is left."""
        async with trio.open_nursery() as nursery:
            self._ask_some(nursery)

    def _ask_some(self, nursery: trio.Nursery) -> None:
        while self._under_way < AT_ONCE and (asked := self._survey.next()) is not None:
            self._under_way += 1
            nursery.start_soon(self._ask_and_go_on, *asked, nursery)

    async def _ask_and_go_on(self, peer: PeerId, addresses: list[str], nursery: trio.Nursery) -> None:
        try:
            await self._ask(peer, addresses)
        except (GossipError, trio.TooSlowError):
            self._survey.failed(peer)
        finally:
            with trio.CancelScope(shield=True):
                await self._transport.disconnect(peer)
        self._under_way -= 1
        self._ask_some(nursery)

    async def _ask(self, peer: PeerId, addresses: list[str]) -> None:
        await self._dial(addresses)
        hello = await self._hello(peer)
        self._survey.named(records_in(hello.records, self._run.scope, {}))
        if not hello.record:  # a bootstrap node is of no region
            self._survey.failed(peer)
            return
        record = parse_record(open_from(hello.record, self._run.scope, peer, EnvelopeKind.RECORD))
        if self._survey.wants(record):
            seconds = await self._round_trip(peer)
            self._survey.answered(record, self._transport.network_of(peer), seconds)
        else:
            self._survey.failed(peer)

    async def _dial(self, addresses: list[str]) -> None:
        for address in addresses[:-1]:
            with suppress(GossipError), trio.move_on_after(STEP_S):
                await self._transport.dial(address)
                return
        with trio.fail_after(STEP_S):
            await self._transport.dial(addresses[-1])

    async def _hello(self, peer: PeerId) -> Hello:
        mine = Hello(scope=self._run.scope, genesis=self._run.genesis, neighbours=0, admitted=False)
        request = HelloRequest(hello=mine.encode())
        raw = await ask_once(self._transport, peer, request, STEP_S, MAX_HELLO_BYTES + 64)
        return parse_hello(parse_bytes_answer(raw, MAX_HELLO_BYTES))

    async def _round_trip(self, peer: PeerId) -> float:
        with trio.fail_after(STEP_S):
            stream = await self._transport.open_stream(peer, PING_PROTOCOL)
            try:
                seconds = median([await ping(stream, self._random_bytes(PING_BYTES)) for _ in range(PINGS)])
                await stream.close()
            except BaseException:
                with trio.CancelScope(shield=True):
                    await stream.reset()
                raise
        return seconds


async def ping(stream: Stream, sent: bytes) -> float:
    """Return the seconds until the far end has returned these bytes, which it could not know. Raises RemoteError where
    it returns others, TransportError."""
    began, back = trio.current_time(), bytearray()
    await stream.send_all(sent)
    while len(back) < len(sent):
        piece = await stream.receive_some(len(sent) - len(back))
        if not piece:
            raise RemoteError(Reason.PROTOCOL, "it does not answer a ping")
        back += piece
    if back != sent:
        raise RemoteError(Reason.PROTOCOL, "it answers a ping with other bytes than it was sent")
    return trio.current_time() - began
