"""A bootstrap node or a relay: it listens, and introduces members to each other, until it is stopped.

It imports nothing that trains, neither torch nor a task, so it runs on the smallest machine that is always on.
"""

import os
import random
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypedDict

import psutil
import tomli_w
import trio
from pydantic import BaseModel, ConfigDict, ValidationError

from gossip.bootstrap import BootstrapService
from gossip.core.api import Relaying
from gossip.core.config import GossipConfig
from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.membership import Manifest, MembershipAdmission
from gossip.membership.private_swarm import PrivateMembership
from gossip.relay_service import RelayService, dialled_outside
from gossip.transport.base import Transport
from gossip.transport.connection_limits import CallerNetworks
from node.config import config_errors
from node.config.sections import NetworkConfig, NodeConfig, check_addresses
from node.config.toml_source import Raw
from node.events.event_types import Interrupted, JoinCommand, ManifestHolds, MembersKnown, Started, WarningEvent
from node.events.liveness import beat
from node.events.log import EventLog
from node.events.progress import NodeProgress
from node.metrics.live_metrics import Readings
from node.metrics.node_metrics import Metrics
from node.page.feed import Feed, LiveSnapshot
from node.page.status_server import server_of
from node.swarm import credentials
from node.system.addresses import UNDIALABLE_WARNING, best_address, is_undialable
from node.system.disk import disk_free
from node.system.errors import EXIT_INTERRUPTED, RunError, UsageError
from node.system.run_dir import ADDRESSES, PORTS
from node.system.signals import until_signal
from node.system.spool_check import check_spool
from node.training.former_member import until_told

SECTIONS = ("network", "node")

LOOK_INSIDE_S = 1.0
"""Seconds between two checks that it still is a member. Chosen: a check takes microseconds."""

TELL_EVERY_S = 10.0
"""Seconds between two reports of how many members there are, where that has changed."""


class BootstrapConfig(BaseModel):
    """Configuration of a bootstrap node or a relay. The sections of a trainer's file about training are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    network: NetworkConfig = NetworkConfig()
    node: NodeConfig = NodeConfig(role="bootstrap")

    def to_toml(self) -> str:
        """Return every setting as TOML that `from_raw` reads back."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def from_raw(raw: Raw) -> BootstrapConfig:
    """Validate the sections that a bootstrap node uses. Raises UsageError on the first mistake."""
    keys: dict[str, list[str] | None] = {
        "network": [*NetworkConfig.__dataclass_fields__],
        "node": [*NodeConfig.__dataclass_fields__],
    }
    try:
        config = BootstrapConfig.model_validate({name: raw[name] for name in SECTIONS if name in raw})
    except ValidationError as error:
        raise config_errors.from_validation(error, keys, raw) from None
    except LocalError as error:
        raise UsageError(f"[network]: {error}") from None
    check_addresses(config.network)
    return config


def check_relay(network: NetworkConfig, *, private: bool) -> None:
    """Raise UsageError for a relay that anybody could use, or that knows nobody."""
    if network.listens_on and not (network.allow or private):
        raise UsageError(
            "a relay takes callers from named networks alone, so that strangers cannot use it",
            "say where its clients are: --allow 10.20.0.0/16 or --spool DIR",
        )
    if not network.peers:
        raise UsageError("a relay has to know a member to find the others", "name one: --peer MULTIADDR")


class _ServiceParts(TypedDict):
    identity: Identity
    transport: Transport
    config: GossipConfig
    rng: random.Random
    warn: Callable[[str], None]
    private: PrivateMembership | None


@dataclass(frozen=True, kw_only=True)
class _Parts:
    config: BootstrapConfig
    service: BootstrapService
    addresses: list[str]
    folder: Path
    emit: EventLog
    private: bool


def main(
    config: BootstrapConfig,
    *,
    node_dir: Path,
    emit: EventLog,
    fits: Callable[[], None] = lambda: None,
    passphrase: bytes | None = None,
) -> int:
    """Run until a signal, and return the exit code. The caller holds the lock of `node_dir`. `fits` is called first, as
    there is no checkpoint that might not fit. `passphrase` is that of its key. Raises LocalError."""
    fits()
    return trio.run(_run, config, node_dir, emit, passphrase)


async def _run(config: BootstrapConfig, node_dir: Path, emit: EventLog, passphrase: bytes | None) -> int:
    from gossip.transport.libp2p.libp2p_transport import (  # takes seconds: a wrong option is reported before
        Libp2pConfig,
        Libp2pTransport,
    )

    network, held = config.network, credentials.load(node_dir, passphrase)
    emit.redact.learn(*held.secrets())
    transport = Libp2pTransport(
        Libp2pConfig(
            listen=network.listens_on,
            ports_file=node_dir / PORTS,
            announce=network.announce,
            swarm=network.swarm,
            bounds=network.bounds(),
            spool=network.spool,
        ),
        held.identity.seed,
        admission=held.admission,
        psk=held.psk,
    )

    def warn(message: str) -> None:
        emit(WarningEvent(message=message))

    parts_of_service = _ServiceParts(
        identity=held.identity,
        transport=transport,
        config=replace(network, address_book=network.address_book or node_dir / ADDRESSES),
        rng=random.Random(),
        warn=warn,
        private=held.private,
    )
    if config.node.role == "relay":
        check_relay(network, private=held.private is not None)
        if network.spool is not None:
            check_spool(network.spool, make=True)
        service: BootstrapService = RelayService(
            **parts_of_service,
            connect=transport.connect_bare,
            outside=dialled_outside(network.allow, network.allow_to),
        )
    else:
        service = BootstrapService(**parts_of_service)
    metrics, progress = Metrics(), NodeProgress(config.node.name)
    feed = Feed(progress)
    for sink in (metrics.observe, progress.observe, feed.observe):
        emit.add_sink(sink)
    feed.watch(lambda: LiveSnapshot(loop_lag_s=metrics.newest_lag_s))
    metrics.live.watch(partial(_readings, service, network, node_dir))
    held.news.to = partial(_tell_of_manifest, emit)
    async with trio.open_nursery() as nursery:
        interrupted = await nursery.start(until_signal)
        nursery.start_soon(metrics.watch_loop)
        nursery.start_soon(beat, node_dir)
        await nursery.start(service.run)
        server = server_of(config.node, metrics, feed)
        emit.redact.learn(*(() if server is None else server.secrets()))
        url = None if server is None else await nursery.start(server.run)
        parts = _Parts(
            config=config,
            service=service,
            addresses=list(transport.addresses),
            folder=node_dir,
            emit=emit,
            private=held.private is not None,
        )
        _announce(parts, held.identity.peer_id, url)
        nursery.start_soon(_tell, parts)
        if held.private is not None:
            nursery.start_soon(_stop_outside, held.private.admission, transport)
        await interrupted.wait()
        nursery.cancel_scope.cancel()
    emit(Interrupted(summary=None))
    return EXIT_INTERRUPTED


async def _stop_outside(admission: MembershipAdmission, transport: Transport) -> None:
    """Raise RunError when this node is no longer a member: nobody would connect to it."""
    while (ended := admission.ended()) is None:  # noqa: ASYNC110  # an end date is nobody's event
        await trio.sleep(LOOK_INSIDE_S)
    await until_told(lambda: transport.peers)
    raise RunError(ended, admission.advice())


def _readings(service: BootstrapService, network: NetworkConfig, folder: Path) -> Readings:
    relays = isinstance(service, RelayService)
    return Readings(
        queues={"serving": service.serving},
        drops=service.drops(),
        disk_free=disk_free(folder),
        relaying=service.relaying() if isinstance(service, RelayService) else Relaying(),
        relay_limit=network.relay_bytes_per_s if relays else 0.0,
    )


def _tell_of_manifest(emit: EventLog, manifest: Manifest) -> None:
    emit(ManifestHolds(version=manifest.version, applies_at=manifest.applies_at))


def _announce(parts: _Parts, peer_id: str, url: str | None) -> None:
    token_file = parts.config.node.status_token_file
    parts.emit(
        Started(
            peer_id=peer_id,
            role=parts.config.node.role,
            addresses=parts.addresses,
            pid=os.getpid(),
            run_dir=str(parts.folder),
            metrics_url=url,
            token_file=None if url is None or token_file is None else str(token_file),
        )
    )
    network = parts.config.network
    if is_undialable(network.listens_on, network.announce):
        parts.emit(WarningEvent(message=UNDIALABLE_WARNING))
    way = [] if parts.private else _way_to(parts)  # a private swarm is joined by an invite
    if way:
        words = ["p2ptrain", "node", *way]
        if network.swarm != NetworkConfig().swarm:
            words += ["--set", f"network.swarm={network.swarm}"]
        parts.emit(JoinCommand(command=shlex.join(words)))


def _way_to(parts: _Parts) -> list[str]:
    """Return the options by which another machine's node finds this one; none where nobody can."""
    network = parts.config.network
    if network.spool is not None:
        return ["--spool", str(network.spool)]
    if not parts.addresses:
        return []
    address = parts.addresses[0] if network.announce else best_address(_reached_by(network, parts.addresses))
    return ["--via" if parts.config.node.role == "relay" else "--peer", address]


def _reached_by(network: NetworkConfig, addresses: list[str]) -> list[str]:
    """Return the addresses in the networks that may call, all where none is in one."""
    callers = CallerNetworks(network.allow)
    return [address for address in addresses if callers.include(address.split("/")[2])] or addresses


async def _tell(parts: _Parts) -> None:
    told: tuple[int, int, int | None] | None = None
    while True:
        bootstrap_state = parts.service.bootstrap_state
        clients = parts.service.clients() if isinstance(parts.service, RelayService) else None
        now = bootstrap_state.members, bootstrap_state.runs, clients
        if now != told:
            told = now
            rss = psutil.Process().memory_info().rss
            rejected = sum(parts.service.stats.rejected_by_reason.values())
            parts.emit(
                MembersKnown(
                    members_known=now[0],
                    runs=now[1],
                    peers_known=bootstrap_state.peers_known,
                    rejected=rejected,
                    rss_bytes=rss,
                    clients=clients,
                )
            )
        await trio.sleep(TELL_EVERY_S)
