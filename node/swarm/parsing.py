"""What people type about swarms, as values: lifetimes, uses, addresses, peers. UsageError on anything else."""

import ipaddress
import re
import socket
from datetime import UTC, datetime
from pathlib import Path

import psutil

from gossip.core.errors import GossipError
from gossip.core.identity import KEY_BYTES, verify_key_of
from gossip.core.ids import PeerId
from gossip.core.membership_limits import MAX_ADDRESS_CHARS, MAX_ALLOWED
from gossip.membership import Policy, Role
from gossip.transport.default_route import likely_sources
from node.system.errors import UsageError

_SPAN = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LIFETIMES = "such as 12h, 7d, 4w, 2027-01-31 (UTC), or never"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_MAX_FILE_BYTES = 1 << 20
"""A list of peers, or an invite: neither has more than a quarter of that."""


def expiry(word: str, now: float) -> int | None:
    """Return the unix seconds at which it ends, from `7d`, a date (UTC) or `never` (None)."""
    if word == "never":
        return None
    if span := _SPAN.fullmatch(word):
        return int(now) + int(span[1]) * _SECONDS[span[2]] if int(span[1]) else _no_lifetime(word)
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        return _no_lifetime(word)
    at = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    if at <= now:
        raise UsageError(f"--expires {word} is over", _LIFETIMES)
    return at


def moment(unix_time: int | None) -> str:
    """Format a time as people read it, in UTC."""
    return "never" if unix_time is None else _formatted(unix_time, "%Y-%m-%d %H:%M UTC", f"second {unix_time}")


def day(unix_time: int) -> str:
    """Format the day of a time, in UTC, in ten characters."""
    return _formatted(unix_time, "%Y-%m-%d", "after 9999")


def place(word: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` (`[::1]:4001` for IPv6)."""
    host, _, port = word.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (_is_address(host) or _HOST.fullmatch(host)) or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise UsageError(f"--at {word!r} is not HOST:PORT", "such as 192.168.1.7:4001 or gpu.example.org:4001")
    return host, int(port)


def own_place() -> tuple[str, int]:
    """Return where others most likely reach this machine, and a port that is free now."""
    host = next(iter(likely_sources()), "127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return host, int(probe.getsockname()[1])


def multiaddr(host: str, port: int) -> str:
    """Return the multiaddr of a host and port, without `/p2p/`."""
    if not _is_address(host):
        return f"/dns/{host}/tcp/{port}"
    return f"/ip{ipaddress.ip_address(host).version}/{host}/tcp/{port}"


def place_in(address: str) -> str:
    """Return host and port of a multiaddr, as people write them; the address itself where it is another kind."""
    found = re.fullmatch(r"/(?:ip4|ip6|dns[46]?|dnsaddr)/([^/]+)/tcp/(\d+)/p2p/\w+", address)
    if found is None:
        return address
    return f"[{found[1]}]:{found[2]}" if ":" in found[1] else f"{found[1]}:{found[2]}"


def listening(host: str, port: int) -> str:
    """Return where to listen, to be reached there: on loopback alone if that is all, else on every interface."""
    if _is_address(host) and ipaddress.ip_address(host).is_loopback:
        return multiaddr(host, port)
    return f"/ip6/::/tcp/{port}" if ":" in host else f"/ip4/0.0.0.0/tcp/{port}"


def is_elsewhere(host: str) -> bool:
    """Return whether it is no address of this machine: a router's or a name, which others have to be given."""
    if not _is_address(host):
        return True
    ours = {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}
    return str(ipaddress.ip_address(host)) not in ours and not ipaddress.ip_address(host).is_loopback


def check_bootstrap(address: str) -> str:
    """Parse a multiaddr that names its peer."""
    host, found, peer = address.rpartition("/p2p/")
    try:
        verify_key_of(PeerId(peer))
    except GossipError:
        found = ""
    if not found or not host.startswith("/") or len(address) > MAX_ADDRESS_CHARS:
        raise UsageError(
            f"{address!r} is no address of a peer", "one looks like /ip4/192.0.2.7/tcp/4001/p2p/12D3KooW..."
        )
    return address


def peer_in_word(word: str) -> PeerId:
    """Parse a peer id."""
    try:
        verify_key_of(PeerId(word))
    except GossipError:
        raise UsageError(f"{word!r} is no peer id", "p2ptrain id show prints one: 12D3KooW...") from None
    return PeerId(word)


def role(word: str) -> Role:
    """Parse the role of an invite."""
    if word not in {each.value for each in Role}:
        raise UsageError(f"unknown role {word!r}", f"there are {', '.join(each.value for each in Role)}")
    return Role(word)


def policy(word: str | None) -> Policy | None:
    """Parse who may join; None: not said."""
    if word is not None and word not in {each.value for each in Policy}:
        raise UsageError(f"unknown policy {word!r}", f"there are {', '.join(each.value for each in Policy)}")
    return None if word is None else Policy(word)


def public_key(word: str) -> bytes:
    """Parse an admin's key, in hex."""
    try:
        key = bytes.fromhex(word)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(f"{word!r} is no admin's key", "p2ptrain swarm key prints one: 64 hex digits")
    return key


def peers_in_file(path: Path) -> frozenset[PeerId]:
    """Read a file with a peer id a line; `#` begins a comment."""
    lines = (line.partition("#")[0].strip() for line in read_text(path, "the list").splitlines())
    found = frozenset(peer_in_word(line) for line in lines if line)
    if not found or len(found) > MAX_ALLOWED:
        raise UsageError(f"{path} lists {len(found)} peers", f"1 to {MAX_ALLOWED}, a peer id a line")
    return found


def is_file(word: str) -> bool:
    """Return whether it names a file. An invite's line is no name, and too long for the system to be asked."""
    try:
        return Path(word).is_file()
    except OSError:
        return False


def is_dir(word: str) -> bool:
    """Return whether it names a folder."""
    try:
        return Path(word).is_dir()
    except OSError:
        return False


def read_text(path: Path, what: str) -> str:
    """Return a small file's text. UsageError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise UsageError(f"{path} is too large for {what}", "")
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text", f"{what} is a text file") from None
    except OSError as error:
        raise UsageError(f"cannot read {what} {path}: {error.strerror}", "") from None


def _formatted(unix_time: int, form: str, beyond: str) -> str:
    try:
        return datetime.fromtimestamp(unix_time, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):  # who redeems an invite may sign any number
        return beyond


def _no_lifetime(word: str) -> int:
    raise UsageError(f"--expires {word!r} is no time", _LIFETIMES)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
