"""`swarm create`: everything is made in a folder beside, which takes its name when it is whole. A crash leaves none."""

import os
import secrets
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gossip.core.atomic_file import rename_durably
from gossip.core.errors import RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.limits import PROTOCOL_VERSION
from gossip.core.membership_limits import MAX_NAME_CHARS
from gossip.membership import ManifestBody, ManifestChain, Policy, Role, create_manifest, next_version, psk_fingerprint
from gossip.membership.manifest import PSK_BYTES
from gossip.membership.settings import Setting
from gossip.membership.signed import NONCE_BYTES, Signer
from node.config.schema import Config, from_raw
from node.config.toml_source import Raw
from node.swarm import agreed_settings, parsing
from node.swarm.accept_invite import keep_own
from node.swarm.base_model import DIGEST, HUB, digest_of_base
from node.swarm.data import digest_of_data
from node.swarm.folder import INVITE, SwarmFolder, settle_node, write_line
from node.swarm.inviting import Wish, check_uses_wish, give
from node.swarm.minimum import MEMORY, check_measurable, check_wanted, minimum_section
from node.swarm.version import own_version
from node.system.errors import RunError, UsageError

_MODE: Final = 0o700

FIRST_USES: Final = 10
"""How many may join by the first invite, where an invite may be for several."""


@dataclass(frozen=True, kw_only=True)
class CreateRequest:
    """What a founder asks for. `others`: more admins' keys, of which with the founder's `threshold` sign the versions
    after the first. `at`: where the founder's node is reached. `min_...`: what a member's machine must have and do."""

    name: str
    policy: Policy = Policy.INVITE_ONLY
    allow: frozenset[PeerId] = frozenset()
    psk: bool = False
    at: tuple[str, int] | None = None
    bootstrap: tuple[str, ...] = ()
    others: tuple[bytes, ...] = ()
    threshold: int = 1
    max_members: int = 0
    data_must_match: bool = False
    min_memory_bytes: float | None = None
    min_tokens_per_s: float | None = None
    first: Wish


@dataclass(frozen=True, kw_only=True)
class CreatedSwarm:
    """What `create` has made."""

    folder: SwarmFolder
    chain: ManifestChain
    line: str
    peer_id: PeerId


def create(out: Path, raw: Raw, wish: CreateRequest, passphrase: bytes | None) -> CreatedSwarm:
    """Create a swarm in `out`, trained as `raw` says. UsageError when something is there, or on settings that cannot
    be."""
    check_possible(out, wish)
    config = from_raw(raw)
    beside = out.with_name(f".{out.name}.{secrets.token_hex(4)}.new")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir(mode=_MODE)
        made = _fill(SwarmFolder(beside), config, agreed_settings.own_part(raw, config.task.name), wish, passphrase)
        rename_durably(beside, out)
    except OSError as error:
        raise RunError(f"cannot make {out}: {error.strerror}", "give another folder with --out") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return replace(made, folder=SwarmFolder(out))


def check_possible(out: Path, wish: CreateRequest) -> None:
    """Check what can be checked before a passphrase is asked for. UsageError."""
    if not (0 < len(wish.name) <= MAX_NAME_CHARS and wish.name.isascii() and wish.name.isprintable()):
        raise UsageError(f"a swarm cannot be called {wish.name!r}", f"1 to {MAX_NAME_CHARS} ASCII characters")
    check_wanted(wish.min_memory_bytes, wish.min_tokens_per_s)
    _check_free(out)
    _check_admins(wish)


def uses_of_first(raw: Raw, asked: int | None) -> int | None:
    """Return how many the first invite of a swarm trained as `raw` says is for; None is any number. `asked`: by the
    founder, 0 for any number; None: nothing was said."""
    if asked is None:
        return 1 if agreed_settings.draws_by_grants(raw) else FIRST_USES
    return asked or None


def check_recipe(raw: Raw, wish: CreateRequest) -> None:
    """Check the settings as a trainer would, so that what no node can do fails now. UsageError."""
    from node.roles.assembly import check_runnable
    from node.roles.task_check import check_task
    from p2ptrain import tasks
    from p2ptrain.tasks import Shard

    config = from_raw(raw)
    check_runnable(config)
    check_uses_wish(wish.first, agreed_settings.settings_of(config))
    if wish.min_tokens_per_s is not None:
        check_measurable(config)
    if config.task.name != tasks.EXTERNAL:  # else only the members' own programs can build the model
        task = tasks.get(config.task.name, **config.task.options)
        check_task(config, task, Shard())
    _check_data(config, wish)


def _fill(
    folder: SwarmFolder, config: Config, own_settings: Raw, wish: CreateRequest, passphrase: bytes | None
) -> CreatedSwarm:
    now = int(time.time())
    authority, identity = folder.new_authority(passphrase), Identity.generate()
    psk = secrets.token_bytes(PSK_BYTES) if wish.psk else None
    host, port = wish.at or parsing.own_place()
    own = f"{parsing.multiaddr(host, port)}/p2p/{identity.peer_id}"
    bootstrap = wish.bootstrap if wish.bootstrap and wish.at is None else (own, *wish.bootstrap)
    terms = _terms(config, wish, authority, bootstrap, psk)
    chain = _chain(terms, wish, authority)
    settle_node(folder, authority, identity, chain, psk, now=now)
    keep_own(folder.node_dir, _reached_at(own_settings, (host, port) if own in bootstrap else None))
    line = give(folder, authority, wish.first, now=now)
    write_line(folder.path / INVITE, line)
    return CreatedSwarm(folder=folder, chain=chain, line=line, peer_id=PeerId(identity.peer_id))


def _terms(
    config: Config, wish: CreateRequest, authority: Signer, bootstrap: tuple[str, ...], psk: bytes | None
) -> ManifestBody:
    return ManifestBody(
        name=wish.name,
        admins=(authority.public_key,),
        run=wish.name,
        policy=wish.policy,
        allow=wish.allow,
        bootstrap=bootstrap,
        min_protocol=PROTOCOL_VERSION,
        min_app=own_version(),
        max_payload_bytes=config.network.max_payload_bytes,
        max_members=wish.max_members,
        settings=agreed_settings.settings_of(
            config,
            _data_digest(config, wish),
            _base_section(config),
            minimum_section(config, wish.min_memory_bytes, wish.min_tokens_per_s),
        ),
        psk_fingerprint=None if psk is None else psk_fingerprint(psk),
    )


def _chain(terms: ManifestBody, wish: CreateRequest, authority: Signer) -> ManifestChain:
    """The founder alone signs the first version: the others are not at this machine. From the second on, k of n do."""
    chain = ManifestChain(create_manifest(terms, secrets.token_bytes(NONCE_BYTES)).signed_by(authority))
    if wish.others:
        admins = tuple(sorted({authority.public_key, *wish.others}))
        second = replace(terms, admins=admins, threshold=wish.threshold)
        try:
            chain.accept(next_version(chain.newest, second, applies_at=0).signed_by(authority))
        except RemoteError as error:
            raise UsageError(f"these admins cannot be: {error.detail}", "") from error
    return chain


def _check_data(config: Config, wish: CreateRequest) -> None:
    if wish.data_must_match and config.task.options.get("data") is None:
        raise UsageError("--data-must-match without --data", "say which data: --data PATH")


def _data_digest(config: Config, wish: CreateRequest) -> str | None:
    return digest_of_data(Path(config.task.options["data"])) if wish.data_must_match else None


def _base_section(config: Config) -> dict[str, Setting] | None:
    """Return what the manifest says of the base model; None where the initial model is drawn from the seed. Reads all
    weights once. Raises TaskError where they cannot be read."""
    model = config.task.options.get("model")
    if config.task.name not in agreed_settings.OWN_OF_TASK or not isinstance(model, str):
        return None
    from p2ptrain.tasks.hf.base_model import folder_with_weights, pinned

    folder = folder_with_weights(model)
    if folder is None:
        return None
    hub = pinned(model)
    named: dict[str, Setting] = {} if hub is None else {HUB: str(hub)}
    return {DIGEST: digest_of_base(folder), MEMORY: _least_memory(config), **named}


def _least_memory(config: Config) -> int:
    """Of a node on a CPU with one neighbour, without what a batch takes: the least that it can do with."""
    from node.roles.memory_forecast import memory_forecast
    from p2ptrain import tasks
    from p2ptrain.tasks.hf.built_model import BuiltModel

    task = tasks.get(config.task.name, **config.task.options)
    built = getattr(task, "built", None)
    assert isinstance(built, BuiltModel), "of the tasks that OWN_OF_TASK names"
    size = built.size()
    return memory_forecast(size.trained, "cpu", config, kept=size.frozen_bytes, neighbours=1).total


def _reached_at(own: Raw, place: tuple[str, int] | None) -> Raw:
    """What the founder's node needs to know of this machine, so that it is found where the manifest says."""
    if place is None:
        return own
    network = {"listen": [parsing.listening(*place)], **own.get("network", {})}
    if parsing.is_elsewhere(place[0]):
        network.setdefault("announce", [parsing.multiaddr(*place)])
    return {**own, "network": network}


def _check_free(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} is there already", "nothing is overwritten: give another folder with --out")
    if not os.access(next(each for each in out.absolute().parents if each.exists()), os.W_OK):
        raise UsageError(f"cannot write beside {out}", "give another folder with --out")


def _check_admins(wish: CreateRequest) -> None:
    count = 1 + len(set(wish.others))
    if not 1 <= wish.threshold <= count:
        raise UsageError(
            f"--k {wish.threshold} of {count} admins cannot be", "name the other admins' keys with --admins"
        )
    if wish.first.role is not Role.TRAINER:
        raise UsageError("the first invite is for trainers", "p2ptrain swarm invite makes others")
