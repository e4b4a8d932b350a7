"""`p2ptrain swarm`: private swarms, from the founding to the last revocation."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli import options, swarm_text
from node.cli.swarm_text import out as _out
from node.system.errors import UsageError

app = typer.Typer(
    help="Private swarms: create one, invite, see who is there, revoke, change what is trained.", no_args_is_help=True
)

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The admin's folder: --out of `p2ptrain swarm create`.")]
To = Annotated[
    list[Path] | None,
    typer.Option("--to", metavar="NODE_DIR", help="A member's folder on this machine to hand it to as well."),
]
Admins = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Another admin's key (p2ptrain swarm key prints one). Can be repeated."),
]
Threshold = Annotated[int | None, typer.Option("--k", metavar="K", help="How many admins must sign a change.")]
Expires = Annotated[
    str,
    typer.Option(
        metavar="WHEN",
        help="When the MEMBERSHIP of those who join by it ends: 12h, 7d, 4w, a date (UTC), or never. As clocks "
        "differ, it is taken for five minutes longer.",
    ),
]
Allow = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Only these may be members, with an invite: a peer id a line (p2ptrain id show)."
    ),
]
Bootstrap = Annotated[
    list[str] | None,
    typer.Option(metavar="MULTIADDR", help="Where newcomers find a member: ends in /p2p/PEER. Can be repeated."),
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the swarm, for people.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to make; nothing may be there.")],
    task: options.TaskName = None,
    data: options.Data = None,
    lora: options.Lora = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|PATH",
            help="The model's size, for tasks that have several: task.size. For hf-lm and hf-vision the model's "
            "folder, or its config.json: task.model.",
        ),
    ] = None,
    sync: Annotated[str | None, typer.Option(metavar="STRATEGY", help="How members agree: sync.strategy.")] = None,
    rounds: options.Rounds = None,
    inner_steps: options.InnerSteps = None,
    seed: options.Seed = None,
    config: options.Files = None,
    set_: options.Sets = None,
    anybody: Annotated[bool, typer.Option("--open", help="Everybody may come who is not revoked.")] = False,
    invite_only: Annotated[
        bool, typer.Option("--invite-only", help="Who has an invite may come (the default).")
    ] = False,
    allow: Allow = None,
    psk: Annotated[
        bool, typer.Option("--psk", help="Hide all traffic behind a pre-shared key too, which is in every invite.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where others reach this machine. (default: its address, a free port)"),
    ] = None,
    bootstrap: Bootstrap = None,
    passphrase_file: options.PassphraseFile = None,
    no_passphrase: Annotated[
        bool, typer.Option("--no-passphrase", help="Leave the authority key unprotected: who copies it is the admin.")
    ] = False,
    admins: Admins = None,
    k: Threshold = None,
    max_members: Annotated[int, typer.Option(min=0, help="Members with a certificate; 0: no limit.")] = 0,
    data_must_match: Annotated[
        bool, typer.Option("--data-must-match", help="Members' data must be the same as --data, byte for byte.")
    ] = False,
    min_memory: Annotated[
        float | None, typer.Option("--min-memory", metavar="GB", min=0.001, help="Memory that a member's machine has.")
    ] = None,
    min_speed: Annotated[
        float | None,
        typer.Option(
            "--min-speed",
            metavar="TOKENS/S",
            min=0.001,
            help="Tokens (images) a second that a member's machine trains; some steps are taken here to know their "
            "cost.",
        ),
    ] = None,
    uses: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How many may join by the first invite; 0: any number. By default ten, and one with "
            "sync.draw = grants, where each member needs its own.",
        ),
    ] = None,
    expires: Expires = "never",
    json: options.Json = False,
) -> None:
    """Create a private swarm: its authority key, a signed manifest, this machine's node, and a first invite.

    Every training setting goes into the manifest, and all members train by it. Data, device, addresses and rate limits
    stay each member's own.
    """
    import time

    from node.cli.tune_cmd import with_found_rate
    from node.config.sections import merged
    from node.swarm import create, parsing
    from node.swarm.agreed_settings import OWN_OF_TASK
    from node.swarm.inviting import Wish
    from node.swarm.passphrases import new_passphrase

    from_folder = task in OWN_OF_TASK and model is not None
    given = options.flags(
        rounds=rounds,
        inner_steps=inner_steps,
        task=task,
        data=data,
        model=Path(model) if from_folder and model else None,
        lora=lora,
        seed=seed,
    )
    for section, key, value in (("task", "size", None if from_folder else model), ("sync", "strategy", sync)):
        if value is not None:
            given.setdefault(section, {})[key] = value
    with _mistakes():
        recipe = merged(config or (), set_ or (), given)
        wish = create.CreateRequest(
            name=name,
            policy=_policy(anybody=anybody, invite_only=invite_only, allow=allow),
            allow=frozenset() if allow is None else parsing.peers_in_file(allow),
            psk=psk,
            at=None if at is None else parsing.place(at),
            bootstrap=tuple(map(parsing.check_bootstrap, bootstrap or ())),
            others=tuple(map(parsing.public_key, admins or ())),
            threshold=1 if k is None else k,
            max_members=max_members,
            data_must_match=data_must_match,
            min_memory_bytes=None if min_memory is None else min_memory * 1e9,
            min_tokens_per_s=min_speed,
            first=Wish(expires=parsing.expiry(expires, time.time()), uses=create.uses_of_first(recipe, uses)),
        )
        create.check_possible(out, wish)
        raw = with_found_rate(recipe, quiet=json)
        create.check_recipe(raw, wish)
        passphrase = new_passphrase(passphrase_file, none=no_passphrase, what="the authority key")
        made = create.create(out, raw, wish, passphrase)
    _out(swarm_text.founded(made), json=json)


@app.command()
def invite(
    folder: Dir,
    role: Annotated[str, typer.Option(help="trainer, observer, relay or bootstrap.")] = "trainer",
    expires: Expires = "never",
    uses: Annotated[int, typer.Option(min=0, help="How many may join by it; 0: any number.")] = 1,
    name: Annotated[str, typer.Option(help="Who it is for: shown with the members that come by it.")] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the line there (mode 0600), and do not print it.")
    ] = None,
    qr: Annotated[bool, typer.Option("--qr", help="Draw it in the terminal, too.")] = False,
    region: Annotated[
        str, typer.Option(metavar="LABEL", help="The only region (sync.regions) that members by it may be of.")
    ] = "",
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="A longer line with the swarm's settings in it, for who cannot fetch them from a member."
        ),
    ] = False,
    passphrase_file: options.PassphraseFile = None,
    json: options.Json = False,
) -> None:
    """Print an invite: one line, by which a newcomer finds the swarm and checks what it is given there.

    It is a password: everybody who has it is admitted.
    """
    import time

    from node.swarm import inviting, parsing
    from node.swarm.folder import SwarmFolder, write_line

    with _mistakes():
        wish = inviting.Wish(
            role=parsing.role(role),
            expires=parsing.expiry(expires, time.time()),
            uses=uses or None,
            name=name,
            full=full,
            region=region,
        )
        admin = SwarmFolder(folder)
        admin.chain()
        if out is not None and out.exists():
            raise UsageError(f"{out} is there already", "nothing is overwritten: give another file")
        line = inviting.give(admin, admin.authority(passphrase_file), wish)
        if out is not None:
            write_line(out, line)
        picture = inviting.qr(line) if qr else None
    if note := swarm_text.ends_note(wish.expires):
        typer.echo(note, err=True)  # what is printed is the line, which goes into files
    _out(swarm_text.invited(line, out, picture), json=json)


@app.command()
def show(
    what: Annotated[
        str, typer.Argument(metavar="DIR|LINE|FILE|-", help="A swarm's or member's folder, or an invite in any form.")
    ],
    json: options.Json = False,
) -> None:
    """Print what a swarm is: who may come, what is trained and how, where it begins. No secret is in it.

    Of a short invite it asks a member, and takes no use of it; where none answers, it prints what the line says.
    """
    from node.swarm import accept_invite, parsing, views
    from node.swarm.folder import SwarmFolder, membership_of
    from node.swarm.pending import known

    with _mistakes():
        if parsing.is_dir(what):
            folder = views.member_dir(Path(what))
            chain, roster = known(membership_of(folder))
            view = views.swarm_view(chain) | {"invites": views.invites_view(SwarmFolder(Path(what)), roster)}
        else:
            view = views.line_view(accept_invite.read_invite(what))
    _out(swarm_text.shown(view), json=json)


@app.command()
def members(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A swarm's or a member's folder.")],
    json: options.Json = False,
) -> None:
    """List who joined, by what role and invite, who is out, and who is connected to this machine's node."""
    import time

    from node.swarm import views
    from node.swarm.folder import membership_of
    from node.swarm.pending import known

    with _mistakes():
        node_dir = views.member_dir(folder)
        chain, roster = known(membership_of(node_dir))
        rows = views.members_view(node_dir, chain, roster, time.time())
    _out(swarm_text.listed(rows, chain.newest.terms.name), json=json)


@app.command()
def revoke(
    folder: Dir,
    who: Annotated[
        str,
        typer.Argument(
            metavar="PEER|INVITE",
            help="A peer id or its end; or an invite's id, name, line or file: all who joined by it.",
        ),
    ],
    reason: Annotated[str, typer.Option(help="Told to every member, and to whom it puts out.")] = "",
    to: To = None,
    passphrase_file: options.PassphraseFile = None,
    json: options.Json = False,
) -> None:
    """Revoke a member, or all who joined by an invite, for good. Members disconnect them as they hear of it."""
    from node.swarm import admin_actions
    from node.swarm.folder import SwarmFolder

    with _mistakes():
        admin = SwarmFolder(folder)
        handed = admin_actions.targets(admin, to or ())
        signed = admin_actions.revoke(admin, admin.authority(passphrase_file), who, reason, handed)
    _out(swarm_text.revoked(signed, handed), json=json)


@app.command()
def rotate(
    folder: Dir,
    set_: options.Sets = None,
    at_round: Annotated[
        int | None, typer.Option(min=0, help="The round from which --set holds. (default: 10 after our node's)")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="open, invite_only or allow.")] = None,
    allow: Allow = None,
    max_members: Annotated[int | None, typer.Option(min=0, help="Members with a certificate; 0: no limit.")] = None,
    bootstrap: Bootstrap = None,
    admins: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="ALL admins from now on, ours too. Can be repeated.")
    ] = None,
    k: Threshold = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where a proposal goes that others must sign.")
    ] = None,
    to: To = None,
    passphrase_file: options.PassphraseFile = None,
    json: options.Json = False,
) -> None:
    """Sign the next version of the manifest. Settings hold at all nodes from one round on; who is a member, at once.

    Of settings, train.learning_rate, final_lr_fraction, clip_norm, rounds and eval_every may change, and network.quorum
    and the deadlines. Where several admins must sign, it leaves a proposal for `p2ptrain swarm sign`.
    """
    from node.config.toml_source import parse_set
    from node.swarm import admin_actions, parsing
    from node.swarm.folder import SwarmFolder

    with _mistakes():
        admin = SwarmFolder(folder)
        handed = admin_actions.targets(admin, to or ())
        settings = {f"{section}.{key}": value for section, key, value in map(parse_set, set_ or ())}
        change = admin_actions.Change(
            settings=settings,
            policy=parsing.policy("allow" if allow is not None and policy is None else policy),
            allow=None if allow is None else parsing.peers_in_file(allow),
            max_members=max_members,
            bootstrap=None if bootstrap is None else tuple(map(parsing.check_bootstrap, bootstrap)),
            admins=None if admins is None else tuple(map(parsing.public_key, admins)),
            threshold=k,
        )
        admin_actions.check_change(admin, change, at_round, handed)
        outcome = admin_actions.rotate(admin, admin.authority(passphrase_file), change, at_round, out, handed)
    _out(swarm_text.changed(outcome), json=json)


@app.command()
def sign(
    folder: Dir,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A proposal that `p2ptrain swarm rotate` made.")],
    yes: Annotated[bool, typer.Option("--yes", help="Sign without being asked.")] = False,
    to: To = None,
    passphrase_file: options.PassphraseFile = None,
    json: options.Json = False,
) -> None:
    """Show another admin's proposal, and sign it. With the last signature needed it goes to the nodes."""
    from node.swarm import admin_actions
    from node.swarm.folder import SwarmFolder

    with _mistakes():
        admin = SwarmFolder(folder)
        handed = admin_actions.targets(admin, to or ()) if admin.known or to else ()
        chain, manifest = admin_actions.read_proposal(file)
        here = admin_actions.check_proposal(admin, (chain, manifest), file, handed)
        if not yes:
            _confirm(swarm_text.proposed(chain.newest, manifest, here))
        outcome = admin_actions.sign(admin, admin.authority(passphrase_file), (chain, manifest), file, handed)
    _out(swarm_text.changed(outcome), json=json)


@app.command()
def key(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An admin's folder; made where there is none.")],
    passphrase_file: options.PassphraseFile = None,
    no_passphrase: Annotated[bool, typer.Option("--no-passphrase", help="Leave a new key unprotected.")] = False,
    json: options.Json = False,
) -> None:
    """Print an admin's public key, for --admins; the key is made first where there is none."""
    from node.swarm.folder import AUTHORITY, SwarmFolder
    from node.swarm.passphrases import new_passphrase

    with _mistakes():
        admin = SwarmFolder(folder)
        if admin.authority_file.exists():
            signer = admin.authority(passphrase_file)
        else:
            signer = admin.new_authority(new_passphrase(passphrase_file, none=no_passphrase, what="the authority key"))
    _out(({"key": signer.public_key.hex(), "file": str(folder / AUTHORITY)}, [signer.public_key.hex()]), json=json)


def _policy(*, anybody: bool, invite_only: bool, allow: Path | None) -> Any:
    from gossip.membership import Policy

    if anybody + invite_only + (allow is not None) > 1:
        raise UsageError("--open, --invite-only and --allow contradict each other", "give one of them")
    return Policy.OPEN if anybody else Policy.INVITE_ONLY if allow is None else Policy.ALLOW


def _confirm(lines: list[str]) -> None:
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to show the proposal on", "--yes signs it unseen")
    for line in lines:
        typer.echo(line, err=True)
    if not typer.confirm("Sign it?", err=True):
        raise UsageError("nothing was signed")


@contextmanager
def _mistakes() -> Iterator[None]:
    """What an admin asks for and cannot be is a mistake in the command, wherever it was found."""
    from gossip.core.errors import LocalError

    try:
        yield
    except LocalError as error:
        raise UsageError(str(error)) from error
