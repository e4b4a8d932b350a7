"""Members on the same local network, found by multicast DNS (RFC 6762, RFC 6763): nobody has to enter an address.

The service's name is a hash of the swarm and run, so that a network does not learn what is trained on it. Received
names prove nothing: addresses go to the dialler as hints, which it dials with the same care as unverified records. Only
addresses of local networks are accepted, so that nobody on the LAN sends members to an outside host.

python-zeroconf implements the protocol, in a thread of its own and with bounded tables (10,000 records, 512 deferred
packets). Its sockets belong to the networks that this machine was in when they were opened. So it is closed and opened
again when these have changed, and, after a growing pause, when the network has failed. py-libp2p's own wrapper of it is
not used: it sleeps in zeroconf's callbacks, writes the peer store from that thread, keeps every service that was ever
named, and announces on one name for all of libp2p.
"""

import hashlib
import ipaddress
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psutil
import trio

from gossip.context import ServiceContext
from gossip.core.backoff import peer_in
from gossip.core.envelope import Scope
from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_ADDRESS_CHARS, MAX_ADDRESSES
from gossip.transport.connection_limits import LOCAL_NETWORKS

if TYPE_CHECKING:
    from zeroconf import ServiceBrowser, ServiceInfo, Zeroconf

DOMAIN: Final = b"p2ptrain-mdns-v1\x00"

LOOK_S: Final = 2.0
"""Seconds between two looks at what the thread has heard: a neighbour on a LAN is not needed sooner."""

LOOK_AGAIN_S: Final = 60.0
"""Seconds until a service whose addresses were requested is asked again."""

MAX_NAMES: Final = 64
"""Services that wait to be asked for their addresses, and eight times as many that were: a LAN has fewer members."""

MAX_LABEL_CHARS: Final = 63
"""Letters in one part of a DNS name (RFC 1035, 2.3.4)."""

MAX_ASKED_AT_ONCE: Final = 8
ASK_S: Final = 1.0
"""Services asked in one look, and how long each may take to answer: on a LAN it takes milliseconds."""

CLOSE_S: Final = 2.0
"""Seconds for the goodbye packets: zeroconf sends three, a quarter of a second apart."""

AGAIN_MIN_S: Final = 10.0
AGAIN_MAX_S: Final = 600.0
"""Seconds from an error of the network to the next try: doubling, from the first to the second. A cable or a Wi-Fi is
back within seconds; where multicast never works six tries an hour cost nothing."""

LOOK_HOSTS_S: Final = 30.0
"""Seconds between two looks at which networks this machine is in: a laptop is carried elsewhere more seldom."""


def service_type(scope: Scope) -> str:
    """Return the name under which members of a run look for each other; DNS-SD allows 15 characters at most."""
    named = hashlib.blake2b(DOMAIN + scope.swarm + scope.run, digest_size=5).hexdigest()
    return f"_p2t{named}._udp.local."


def names_a_member(name: str, service: str) -> bool:
    """Return whether a name is a peer id of this service type: anyone on the LAN may send any name, and some make
    zeroconf raise."""
    peer = name.removesuffix(f".{service}")
    return peer != name and peer.isascii() and peer.isalnum() and len(peer) <= MAX_LABEL_CHARS


def is_local(address: str) -> bool:
    """Return whether a multiaddr leads to a local network, by number."""
    parts = address.split("/")
    try:
        host = ipaddress.ip_address(parts[2]) if parts[1] in ("ip4", "ip6") else None
    except (ValueError, IndexError):
        return False
    networks = (ipaddress.ip_network(each) for each in LOCAL_NETWORKS)
    return host is not None and any(host.version == each.version and host in each for each in networks)


def worth_telling(addresses: Sequence[str]) -> list[str]:
    """Return those of our addresses that a LAN can use: loopback ones where there are no others."""
    local = [each for each in addresses if is_local(each) and len(each) <= MAX_ADDRESS_CHARS - len("a0=")]
    beyond = [each for each in local if not each.startswith(("/ip4/127.", "/ip6/::1/"))]
    return (beyond or local)[:MAX_ADDRESSES]


def addresses_of(properties: Mapping[bytes, bytes | None], me: PeerId) -> list[str]:
    """Return what a service's TXT record says: local multiaddrs of one peer that is not us; the rest is ignored."""
    found: list[str] = []
    for key in sorted(properties)[: 2 * MAX_ADDRESSES]:
        value = properties[key] or b""
        try:
            address = value.decode("ascii")
            peer = peer_in(address)
        except (UnicodeDecodeError, LocalError):
            continue
        if peer != me and is_local(address) and address.isprintable() and (not found or peer_in(found[0]) == peer):
            found.append(address)
    return found[:MAX_ADDRESSES]


class _Heard:
    """Names that zeroconf's thread has heard, for our thread to read: each once, the oldest is dropped first."""

    def __init__(self) -> None:
        self._names: deque[str] = deque(maxlen=MAX_NAMES)
        self._lock = threading.Lock()

    def add_service(self, zc: "Zeroconf", type_: str, name: str) -> None:
        with self._lock:
            if name not in self._names:
                self._names.append(name)

    update_service = add_service

    def remove_service(self, zc: "Zeroconf", type_: str, name: str) -> None:
        """Ignore a removal: whether a member is gone shows when it is dialled."""

    def take(self) -> list[str]:
        with self._lock:
            return [self._names.popleft() for _ in range(min(len(self._names), MAX_ASKED_AT_ONCE))]


class Mdns:
    """Announces us on the local network, and calls `hint` with others' addresses. `interfaces`: our addresses to use;
    none: all of them."""

    def __init__(
        self,
        *,
        scope: Scope,
        me: PeerId,
        addresses: Callable[[], Sequence[str]],
        hint: Callable[[str], None],
        warn: Callable[[str], None],
        interfaces: Sequence[str] = (),
    ) -> None:
        self._type = service_type(scope)
        self._me = me
        self._addresses = addresses
        self._hint = hint
        self._warn = warn
        self._interfaces = list(interfaces)
        self._heard = _Heard()
        self._asked: OrderedDict[str, float] = OrderedDict()
        self._told: list[str] = []
        self._hosts = _own_hosts

    async def run(self) -> None:
        """Run until cancelled. Where multicast does not work, warn the operator once, and try again more and more
        rarely; after AGAIN_MAX_S without an error the next one is a new one."""
        import zeroconf  # a tenth of a second to import: only its users pay

        pause_s, warned = AGAIN_MIN_S, False
        while True:
            began = trio.current_time()
            try:
                await self._while_it_works()
            except (OSError, zeroconf.Error) as error:
                if trio.current_time() - began >= AGAIN_MAX_S:
                    pause_s, warned = AGAIN_MIN_S, False
                if not warned:
                    why = str(error) or type(error).__name__
                    self._warn(
                        "no members are looked for on the local network: multicast DNS does not work here "
                        f"({why}); it is tried again"
                    )
                warned = True
                await trio.sleep(pause_s)
                pause_s = min(AGAIN_MAX_S, 2 * pause_s)

    async def _while_it_works(self) -> None:
        """Announce and look until cancelled, or until this machine is in other networks. Raises OSError and
        zeroconf.Error; nothing is left open."""
        zc, browser = await trio.to_thread.run_sync(self._open)
        self._told = []
        self._asked.clear()
        hosts, look_at = self._hosts(), trio.current_time() + LOOK_HOSTS_S
        try:
            while trio.current_time() < look_at or self._hosts() == hosts:
                if trio.current_time() >= look_at:
                    look_at = trio.current_time() + LOOK_HOSTS_S
                await self._tell(zc)
                await self._look(zc)
                await trio.sleep(LOOK_S)
        finally:
            with trio.move_on_after(CLOSE_S) as scope:
                scope.shield = True
                await trio.to_thread.run_sync(_close, zc, browser, abandon_on_cancel=True)

    def _open(self) -> "tuple[Zeroconf, ServiceBrowser]":
        from zeroconf import InterfaceChoice, IPVersion, ServiceBrowser, Zeroconf

        zc = Zeroconf(
            interfaces=self._interfaces or InterfaceChoice.All, ip_version=IPVersion.V4Only, use_asyncio=False
        )
        try:
            return zc, ServiceBrowser(zc, self._type, listener=self._heard)  # type: ignore[arg-type]  # duck-typed
        except BaseException:
            zc.close()
            raise

    async def _tell(self, zc: "Zeroconf") -> None:
        addresses = worth_telling(self._addresses())
        if addresses and addresses != self._told:
            info, first = self._info(addresses), not self._told
            self._told = addresses
            await trio.to_thread.run_sync(_register if first else _update, zc, info)

    def _info(self, addresses: Sequence[str]) -> "ServiceInfo":
        from zeroconf import ServiceInfo

        parts = [each.split("/") for each in addresses]
        return ServiceInfo(
            self._type,
            f"{self._me}.{self._type}",
            port=next((int(each[4]) for each in parts if each[3:4] == ["tcp"]), 0),
            parsed_addresses=sorted({each[2] for each in parts}),  # without one no answer is complete to zeroconf
            properties={f"a{number}": address for number, address in enumerate(addresses)},
            server=f"{self._me}.local.",
        )

    async def _look(self, zc: "Zeroconf") -> None:
        now = trio.current_time()
        for name in self._heard.take():
            if not names_a_member(name, self._type) or name.startswith(f"{self._me}."):
                continue
            if self._asked.get(name, now) > now:
                continue
            self._asked[name] = now + LOOK_AGAIN_S
            self._asked.move_to_end(name)
            while len(self._asked) > 8 * MAX_NAMES:
                self._asked.popitem(last=False)
            info = await trio.to_thread.run_sync(zc.get_service_info, self._type, name, int(ASK_S * 1000))
            for address in addresses_of(info.properties, self._me) if info is not None else []:
                self._hint(address)


def mdns_for(context: ServiceContext, hint: Callable[[str], None]) -> Mdns:
    """Return the task for a member's service."""
    return Mdns(
        scope=context.engine.scope,
        me=context.engine.me,
        addresses=lambda: context.transport.addresses,
        hint=hint,
        warn=context.warn,
    )


def _own_hosts() -> frozenset[str]:
    """Return the IPv4 addresses of this machine."""
    entries = (entry for entries in psutil.net_if_addrs().values() for entry in entries)
    return frozenset(entry.address for entry in entries if entry.family == socket.AF_INET)


def _register(zc: "Zeroconf", info: "ServiceInfo") -> None:
    zc.register_service(info, cooperating_responders=True)  # nobody else has our peer id: no probing for it


def _update(zc: "Zeroconf", info: "ServiceInfo") -> None:
    zc.update_service(info)


def _close(zc: "Zeroconf", browser: "ServiceBrowser") -> None:
    """Stop, with a goodbye where the network carries one. Raises nothing: a node that stops must not end with an error
    of a network that is gone."""
    from zeroconf import Error

    with suppress(OSError, Error):
        browser.cancel()
    with suppress(OSError, Error):
        zc.close()
