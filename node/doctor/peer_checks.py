"""The configured peers: each name, port, key and run; and what they see of us when they are asked to dial back.

It speaks as a stranger with a key of its own, which is thrown away: a node with the real one may be running. It admits
nobody and asks for nothing but hellos and dial backs, so members are left as they were. In a private swarm strangers
get no answer: there it uses the node's own key, and only while the node does not run.
"""

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio

from gossip.core.api import RunInfo
from gossip.core.backoff import addresses_in, peer_in
from gossip.core.envelope import EnvelopeKind as EnvelopeKind
from gossip.core.envelope import Scope, open_from
from gossip.core.errors import GossipError, LocalError, Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_HELLO_BYTES, PROTOCOL_VERSION
from gossip.core.messages import Hello, HelloRequest, Refused, parse_bytes_answer, parse_hello
from gossip.core.statements import parse_record
from gossip.reachability.dialback import MAX_PORTS, Sighting
from gossip.reachability.dialback_task import ask_to_dial_back
from gossip.reachability.relay import parse_circuit
from gossip.session import ask_once
from gossip.transport.base import Transport
from gossip.transport.client_handlers import ClientHandlers
from node.doctor.finding import Finding, Subject, unless_one_is_fine
from node.doctor.machine import CLOCK_SLACK_S
from node.doctor.network import bound, host_and_port, kind_of
from node.system import text

MAX_PEERS: Final = 8
"""That are looked at: a page has room for so many, and a node is content with one."""

STEP_S: Final = 4.0
"""For a name, a connection, a handshake, a hello, each: a third SYN goes out after 3 s. All peers are tried at once."""

DIAL_BACK_S: Final = 7.0
"""Longer than the peer's own patience with us (reachability/dialback.py)."""

_REFUSALS: Final = {
    Reason.WRONG_SWARM: ("another swarm", "the same network.swarm as that peer"),
    Reason.WRONG_RUN: (
        "another run: task, model, base model or their options differ",
        "run the line that the other node prints",
    ),
    Reason.WRONG_MODEL: (
        "another initial model",
        "the same train.seed, the same version of torch, and for byte-lm the same kind of CPU",
    ),
    Reason.PROTOCOL: ("another version of the protocol", "the same version of p2ptrain on both"),
    Reason.BANNED: ("it has banned us", "wait an hour, and see its events for the reason"),
}


def configured(subject: Subject) -> list[str]:
    """Return the addresses to try: `network.peers`, and the lines of the peers file."""
    file = subject.network.peers_file
    found = [*subject.network.peers, *(addresses_in(file) if file else ())]
    return list(dict.fromkeys(found))[:MAX_PEERS]


async def peers(subject: Subject, run: RunInfo | None, within_s: float) -> list[Finding]:
    """Check each configured peer, and what it sees of us. `run` is ours; None where the model could not be built."""
    targets = configured(subject)
    if not targets:
        fix = "to join a swarm, give the address that another node prints, with --peer"
        return [Finding(check="peers", level="ok", seen="none is configured: this node begins a swarm", fix=fix)]
    if subject.unasked:
        return [Finding(check="peers", level="unknown", seen=f"not asked: {subject.unasked}")]
    late = Finding(check="from outside", level="unknown", seen="not tried: the peers took too long")
    found = {it: [Finding(check="peer", level="unknown", seen=f"{it}: takes too long")] for it in targets}
    with trio.move_on_after(within_s):
        transport = _transport(subject)
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run, ClientHandlers(keeps_peers=True))
            async with trio.open_nursery() as trying:
                for address in targets:
                    trying.start_soon(_into, found, address, partial(_peer, subject, transport, address, run))
            late = await _reachability(subject, transport)
            nursery.cancel_scope.cancel()
    return [*unless_one_is_fine(it for address in targets for it in found[address]), late]


def _transport(subject: Subject) -> Transport:
    """Listening where the node would, as far as that is free: it is about to be dialled there."""
    from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport  # seconds to import

    network = subject.network
    listen = tuple(_free(address) for address in network.listens_on)
    config = Libp2pConfig(listen=listen, announce=network.announce, swarm=network.swarm, dial_timeout_s=STEP_S)
    held = subject.credentials
    if held is None:
        return Libp2pTransport(config, os.urandom(32))
    return Libp2pTransport(config, held.identity.seed, admission=held.admission, psk=held.psk)


def _free(address: str) -> str:
    host, port = host_and_port(address)
    try:
        bound(host, port).close()
    except OSError:
        return f"/{'ip6/::1' if ':' in host else 'ip4/127.0.0.1'}/tcp/0"
    return address


async def _into(found: dict[str, list[Finding]], address: str, check: Callable[[], Awaitable[list[Finding]]]) -> None:
    found[address] = await check()


async def _peer(subject: Subject, transport: Transport, address: str, run: RunInfo | None) -> list[Finding]:
    """The first step that fails, or that all is well."""
    try:
        peer = peer_in(address)
    except LocalError as error:
        return [_wrong(address, str(error), "copy it from the line that the other node prints")]
    if parse_circuit(address) is not None:
        return [Finding(check="peer", level="unknown", seen=f"{address}: only to be had through its relay")]
    failed = await connect(address) or await _handshake(transport, address)
    return [failed] if failed is not None else await _hello(subject, transport, peer, run)


async def connect(address: str) -> Finding | None:
    """Return what keeps this machine from connecting to an address: a name, a port; None where something answers."""
    host, port = host_and_port(address)
    try:
        with trio.fail_after(STEP_S):
            await trio.socket.getaddrinfo(host, port)
    except (OSError, trio.TooSlowError):
        return _wrong(address, f"the name {host} does not resolve", "the name, and this machine's DNS")
    try:
        with trio.fail_after(STEP_S):
            stream = await trio.open_tcp_stream(host, port)
        await stream.aclose()
    except trio.TooSlowError:
        fix = "its firewall and port forwarding, and that its machine is on"
        return _wrong(address, f"no answer from port {port}", fix)
    except OSError as error:
        return _wrong(
            address, f"port {port} cannot be reached: {_in_words(error)}", "whether that node runs, and its port"
        )
    return None


async def _handshake(transport: Transport, address: str) -> Finding | None:
    try:
        await transport.dial(address)
    except GossipError as error:
        fix = "the address: its port and peer id must be what that node prints now"
        return _wrong(address, str(error).rpartition(": ")[2], fix)
    return None


async def _hello(subject: Subject, transport: Transport, peer: PeerId, run: RunInfo | None) -> list[Finding]:
    name = text.peer(peer)
    if run is None:
        return [Finding(check="peer", level="ok", seen=f"{name} proves its key; not asked for its run")]
    scope = Scope(swarm=subject.network.named, run=run.run_id)
    mine = Hello(scope=scope, genesis=run.genesis, neighbours=0, admitted=False)
    try:
        raw = await ask_once(transport, peer, HelloRequest(hello=mine.encode()), STEP_S, MAX_HELLO_BYTES + 64)
        theirs = parse_hello(parse_bytes_answer(raw, MAX_HELLO_BYTES))
    except Refused as refusal:
        what, fix = _REFUSALS.get(refusal.reason, (refusal.detail or str(refusal.reason), "its events, for the reason"))
        return [_wrong(name, f"it refuses: {what} ({refusal.reason})", fix)]
    except GossipError as error:
        return [_wrong(name, f"no hello: {error}", "the same version of p2ptrain on both")]
    seen = f"{name} is of this run (protocol {PROTOCOL_VERSION}), with {text.plural(theirs.neighbours, 'neighbour')}"
    return [Finding(check="peer", level="ok", seen=seen), *_clock_of(theirs, scope, peer)]


def _clock_of(theirs: Hello, scope: Scope, peer: PeerId) -> list[Finding]:
    """A record is dated by its signer's clock at its start, which is over: it cannot be from our future."""
    if not theirs.record:
        return []
    try:
        record = parse_record(open_from(theirs.record, scope, peer, EnvelopeKind.RECORD))
    except RemoteError:
        return []
    ahead = record.epoch / 1000 - time.time()
    if ahead <= CLOCK_SLACK_S:
        return []
    seen = f"{text.peer(peer)} started {text.duration(ahead)} from now, by its clock and ours"
    return [Finding(check="clock", level="warning", seen=seen, fix="set the clock that is wrong")]


async def _reachability(subject: Subject, transport: Transport) -> Finding:
    """Ask those that answered to dial back the ports that are listened on."""
    ports = _ports(subject, transport)
    sightings: list[Sighting] = []

    async def ask(peer: PeerId) -> None:
        try:
            with trio.move_on_after(DIAL_BACK_S):
                found = await ask_to_dial_back(transport, peer, ports, DIAL_BACK_S)
                if _is_of_ip(found):
                    sightings.append(found)
        except GossipError:
            return  # an older version, or one that is asked too often

    if not ports:
        seen = "not tried: the ports to listen on are in use"
        fix = "of a node that runs there, see p2ptrain_reachability"
        return Finding(check="from outside", level="unknown", seen=seen, fix=fix)
    async with trio.open_nursery() as nursery:
        for peer in transport.peers:
            nursery.start_soon(ask, peer)
    return _verdict(sightings, fixed=any(host_and_port(it)[1] for it in subject.network.listens_on))


def _ports(subject: Subject, transport: Transport) -> tuple[int, ...]:
    """Of what is announced, else of what is listened on where the node would."""
    network = subject.network
    if network.announce:
        found = [host_and_port(address)[1] for address in network.announce]
    else:
        there = {host_and_port(address)[1] for address in transport.addresses}
        wanted = {host_and_port(address)[1] for address in network.listens_on}
        found = sorted(there if 0 in wanted else there & wanted)
    return tuple(dict.fromkeys(found))[:MAX_PORTS]


def _is_of_ip(sighting: Sighting) -> bool:
    """Return whether all addresses have a host. Those of the memory transport have none, and any peer may claim one."""
    return all(address.startswith(("/ip4/", "/ip6/")) for address in sighting.tried)


def _verdict(sightings: Sequence[Sighting], *, fixed: bool) -> Finding:
    if not sightings:
        return Finding(check="from outside", level="unknown", seen="no peer could be asked to dial back")
    answered = list(dict.fromkeys(address for it in sightings for address in it.answered))
    if answered:
        private = all(kind_of(host_and_port(address)[0]) != "public" for address in answered)
        note = "; from the same network, which says nothing about the internet" if private else ""
        return Finding(check="from outside", level="ok", seen=f"reached at {', '.join(answered)}{note}")
    tried = list(dict.fromkeys(address for it in sightings for address in it.tried))
    port = host_and_port(tried[0])[1] if fixed else "4001 (with --listen /ip4/0.0.0.0/tcp/4001)"
    fix = f"forward TCP port {port} of the router to this machine and open it in its firewall; or let a member relay"
    seen = f"{text.plural(len(sightings), 'peer')} dialled back and got no answer at {', '.join(tried)}"
    return Finding(check="from outside", level="warning", seen=seen, fix=fix)


def _in_words(error: OSError) -> str:
    """What the system says. With several addresses to try, trio raises one error about as many causes."""
    causes = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else [error]
    said = {os.strerror(cause.errno) for cause in causes if isinstance(cause, OSError) and cause.errno is not None}
    return ", ".join(sorted(said)).lower() or str(error)


def _wrong(where: str, what: str, fix: str) -> Finding:
    return Finding(check="peer", level="problem", seen=f"{where}: {what}", fix=fix)
