"""`p2ptrain id`: a node's identity, which is one Ed25519 key in a file."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import options
from node.system.errors import UsageError
from node.system.run_dir import IDENTITY, locked_meanwhile

if TYPE_CHECKING:
    from gossip.core.identity import Identity

app = typer.Typer(help="Make, show, protect and replace identities.", no_args_is_help=True)

KeyPath = Annotated[
    Path, typer.Argument(metavar="PATH", help=f"The key file, or a node's folder with {IDENTITY} in it.")
]


@app.command()
def new(path: KeyPath, passphrase_file: options.PassphraseFile = None, json: options.Json = False) -> None:
    """Make a new identity. A file that is there stays as it is, and the command fails.

    With --passphrase-file the key lies under that passphrase, and the node wants the same option.
    """
    from gossip.core.identity import Identity
    from node.swarm.passphrases import new_from_file

    file = _key_file(path)
    if file.exists():
        raise UsageError(f"{file} holds an identity already", "move it away first: nothing can bring it back")
    passphrase = None if passphrase_file is None else new_from_file(passphrase_file)
    _print(Identity.load_or_create(file, passphrase).peer_id, file, json=json)


@app.command()
def show(path: KeyPath, passphrase_file: options.PassphraseFile = None, json: options.Json = False) -> None:
    """Print the peer id that belongs to an identity."""
    file = _there(path)
    _print(_opened(file, passphrase_file).peer_id, file, json=json)


@app.command()
def export(
    path: KeyPath,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Where the copy goes; nothing may be there.")],
    passphrase_file: options.PassphraseFile = None,
    new_passphrase_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds a passphrase to put the copy under.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Copy an identity to a file (mode 0600), to keep it elsewhere. Two running nodes with one identity are banned."""
    from node.swarm.passphrases import new_from_file

    file = _there(path)
    if out.exists():
        raise UsageError(f"{out} is there already", "nothing is overwritten: give another file")
    identity = _opened(file, passphrase_file)
    identity.save(out, None if new_passphrase_file is None else new_from_file(new_passphrase_file))
    _print(identity.peer_id, out, json=json)


@app.command()
def encrypt(path: KeyPath, passphrase_file: options.PassphraseFile = None, json: options.Json = False) -> None:
    """Put an identity under a passphrase. The node that uses it then wants --passphrase-file, or asks."""
    from gossip.core.identity import Identity
    from node.swarm.passphrases import new_passphrase

    file = _there(path)
    if Identity.is_sealed(file):
        raise UsageError(f"{file} lies under a passphrase already", "id export with --new-passphrase-file changes it")
    with locked_meanwhile(file.parent):
        identity = Identity.load(file)
        passphrase = new_passphrase(passphrase_file, none=False, what=f"the key {file}")
        identity.save(file, passphrase, replace=True)
    _print(identity.peer_id, file, json=json)


@app.command()
def rotate(path: KeyPath, passphrase_file: options.PassphraseFile = None, json: options.Json = False) -> None:
    """Replace a stopped node's key: the old one signs the new one, and a membership goes on under it.

    Members refuse the old key from the moment they know the new one. The old one is deleted.
    """
    from node.cli.membership_options import warn
    from node.swarm.key_rotation import renamed_bootstrap, replace_key

    file = _there(path)
    passphrase = _passphrase(file, passphrase_file)
    with locked_meanwhile(file.parent):
        identity = replace_key(file, passphrase)
        renamed = renamed_bootstrap(file.parent)
    if renamed:
        words = " ".join(f"--bootstrap {address}" for address in renamed)
        warn(
            [
                "the swarm and its invites name this node by its old key, and newcomers find nobody there; an admin "
                f"tells the swarm, and gives new invites: p2ptrain swarm rotate DIR {words}"
            ]
        )
    _print(identity.peer_id, file, json=json)


def _opened(file: Path, passphrase_file: Path | None) -> "Identity":
    from gossip.core.identity import Identity

    return Identity.load(file, _passphrase(file, passphrase_file))


def _passphrase(file: Path, passphrase_file: Path | None) -> bytes | None:
    from gossip.core.identity import Identity
    from node.swarm.passphrases import passphrase_for

    return passphrase_for(passphrase_file, f"the key {file}") if Identity.is_sealed(file) else None


def _there(path: Path) -> Path:
    file = _key_file(path)
    if not file.is_file():
        raise UsageError(f"there is no identity {file}", "p2ptrain id new makes one")
    return file


def _key_file(path: Path) -> Path:
    return path / IDENTITY if path.is_dir() else path


def _print(peer_id: str, file: Path, *, json: bool) -> None:
    typer.echo(jsonlib.dumps({"peer_id": peer_id, "file": str(file)}) if json else peer_id)
