"""Options that several commands share, and how they become configuration: flags win over --set, --set over files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Files = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", metavar="FILE", help="A TOML file; later ones win. Can be repeated."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="One setting, such as train.batch_size=8. Can be repeated."),
]
Rounds = Annotated[int | None, typer.Option(help="Rounds to train.")]
InnerSteps = Annotated[int | None, typer.Option(help="Local steps in a round.")]
TaskName = Annotated[
    str | None, typer.Option("--task", help="byte-lm, digits, hf-lm, hf-vision, or your own module:factory.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="A file or folder to learn from, for tasks that read one; for hf-lm a dataset of the hub, too: "
        "user/name@commit.",
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="PATH",
        help="A folder with a model of transformers, its config.json, or its name on the hub, user/name@revision "
        "(hf-lm, hf-vision).",
    ),
]
Lora = Annotated[
    int | None, typer.Option("--lora", metavar="RANK", help="Train LoRA adapters of this rank (hf-lm, hf-vision).")
]
RunDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where everything is written; a run that is there goes on. (default: runs/TIME)"
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Of the initial model, which must be one in a swarm, and the data order.")
]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", "-p", metavar="MULTIADDR", help="A node of the swarm to join. Can be repeated."),
]
NodeName = Annotated[str | None, typer.Option("--name", help="The node's folder in the run folder.")]
RoleName = Annotated[
    str | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="trainer; observer: takes the swarm's model and evaluates it; bootstrap: tells members of each other; "
        "relay: connects nodes that reach nobody else with the members.",
    ),
]
Via = Annotated[
    str | None,
    typer.Option(
        "--via", metavar="MULTIADDR", help="The relay through which all others are reached: nobody else is dialled."
    ),
]
Spool = Annotated[
    Path | None,
    typer.Option(
        "--spool", metavar="DIR", help="A shared folder in which a relay and nodes without a network find each other."
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="PREFIX", help="A network, such as 10.20.0.0/16, that may call. Can be repeated."),
]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Holds the token of a node's page (its node.status_token_file).")
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Holds the passphrase of the key; its owner alone may read it. (default: asked)"),
]
Invite = Annotated[
    str | None,
    typer.Option(
        metavar="LINE|FILE|-",
        envvar="P2PTRAIN_INVITE",
        help="An invite to a private swarm: a file with its line, - for stdin, or the line itself. What stands on a "
        "command line can be seen by other users of this machine (ps); the others can not.",
        show_envvar=True,
    ),
]
SwarmDir = Annotated[
    Path | None, typer.Option("--swarm", metavar="DIR", help="Run the node in this folder of `p2ptrain swarm create`.")
]
When = Annotated[
    str | None,
    typer.Option(
        "--when",
        metavar="WORD",
        help="When this machine trains: always, idle, night or plugged. It is paused otherwise.",
    ),
]
Memory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Main memory that the node may take, such as 6GiB.")
]
GpuMemory = Annotated[
    str | None, typer.Option("--gpu-memory", metavar="SIZE", help="Memory of the GPU that it may take, such as 4GiB.")
]
Disk = Annotated[str | None, typer.Option("--disk", metavar="SIZE", help="What its folder may take, such as 20GiB.")]
Cpu = Annotated[float | None, typer.Option("--cpu", metavar="CORES", help="Cores that it may take, such as 2 or 0.5.")]
Exports = Annotated[
    list[str] | None,
    typer.Option("--export", metavar="NAME", help="Tell tensorboard, wandb (offline) or otel, too. Can be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of text.")]


def flags(
    *,
    rounds: int | None = None,
    inner_steps: int | None = None,
    task: str | None = None,
    data: Path | None = None,
    model: Path | None = None,
    lora: int | None = None,
    seed: int | None = None,
    attack: str | None = None,
    peers: Sequence[str] = (),
    listen: Sequence[str] = (),
    via: str | None = None,
    spool: Path | None = None,
    allow: Sequence[str] = (),
    name: str | None = None,
    role: str | None = None,
    exports: Sequence[str] = (),
    when: str | None = None,
    memory: str | None = None,
    gpu_memory: str | None = None,
    disk: str | None = None,
    cpu: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the settings that these flags stand for. Paths become absolute: another process may read them."""
    settings: dict[tuple[str, str], Any] = {
        ("train", "rounds"): rounds,
        ("train", "inner_steps"): inner_steps,
        ("train", "seed"): seed,
        ("task", "name"): task,
        ("task", "data"): None if data is None else _of_hub_or_here(data, pinned=True),
        ("task", "model"): None if model is None else _of_hub_or_here(model),
        ("task", "lora"): lora,
        ("attack", "name"): attack,
        ("network", "peers"): list(peers) or None,
        ("network", "listen"): list(listen) or None,
        ("network", "via"): via,
        ("network", "spool"): None if spool is None else str(spool.absolute()),
        ("network", "allow"): list(allow) or None,
        ("node", "name"): name,
        ("node", "role"): role,
        ("monitoring", "exporters"): list(exports) or None,
        ("participation", "when"): when,
        ("budget", "memory"): memory,
        ("budget", "gpu_memory"): gpu_memory,
        ("budget", "disk"): disk,
        ("budget", "cpu"): cpu,
    }
    raw: dict[str, dict[str, Any]] = {}
    for (section, key), value in settings.items():
        if value is not None:
            raw.setdefault(section, {})[key] = value
    return raw


def _of_hub_or_here(given: Path, *, pinned: bool = False) -> str:
    """A name of the hub, only with a revision where it is to be `pinned`, as it is; everything else as an absolute
    path."""
    if not given.exists() and not given.is_absolute():
        from p2ptrain.tasks.hf.hub import hub_name

        name = hub_name(str(given))
        if name is not None and (name.revision is not None or not pinned):
            return str(given)
    return str(given.expanduser().absolute())
