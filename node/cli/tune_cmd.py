"""`p2ptrain tune`: the learning rate, by short runs; and what `train.learning_rate = "auto"` means to a command."""

import json as jsonlib
import math
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import options
from node.cli.telling import Telling

if TYPE_CHECKING:
    from node.config.toml_source import Raw
    from p2ptrain.training.rate_search import FoundRate, Trial


def tune(
    config: options.Files = None,
    set_: options.Sets = None,
    rounds: options.Rounds = None,
    inner_steps: options.InnerSteps = None,
    task: options.TaskName = None,
    data: options.Data = None,
    model: options.Model = None,
    lora: options.Lora = None,
    seed: options.Seed = None,
    steps: Annotated[int | None, typer.Option(min=10, help="Steps of each short run. (default: 200)")] = None,
    json: options.Json = False,
) -> None:
    """Find the learning rate for a model, its data and optimizer, by some six short runs on this machine.

    Give it the settings of the run to come, its length too: a much longer one wants a lower rate. All nodes of a swarm
    are to have the same: give each of them what this prints. `p2ptrain up` and `p2ptrain swarm create` do both by
    themselves with --set train.learning_rate=auto.
    """
    from node.config.auto_rate import find_rate
    from node.config.sections import merged
    from p2ptrain.training.rate_search import TRIAL_STEPS

    given = options.flags(
        rounds=rounds, inner_steps=inner_steps, task=task, data=data, model=model, lora=lora, seed=seed
    )
    raw = merged(config or (), set_ or (), given)
    found = find_rate(raw, _told if json else _shown, steps=TRIAL_STEPS if steps is None else steps)
    if json:
        typer.echo(jsonlib.dumps({"learning_rate": found.rate, "trial_steps": found.trial_steps}))
    else:
        typer.echo(_words(found))
        typer.echo(f"--set train.learning_rate={found.rate:g}")


def with_found_rate(raw: "Raw", *, quiet: bool) -> "Raw":
    """Return the settings with the learning rate found where they leave it to us, and say so on stderr; else as they
    are."""
    from node.config.auto_rate import find_rate, wants_auto, with_rate

    if not wants_auto(raw):
        return raw
    with Telling("looking for a learning rate, by short runs", quiet=quiet) as tell:
        found = find_rate(raw, lambda trial: tell(f"looking for a learning rate: {_line(trial)}"))
    if not quiet:
        typer.echo(f"train.learning_rate={found.rate:g}: {_words(found)}", err=True)
    return with_rate(raw, found.rate)


def _words(found: "FoundRate") -> str:
    best = (
        f"of {len(found.trials)} rates {found.best.rate:g} is the lowest as good as any, in {found.trial_steps} steps"
    )
    return best if found.rate == found.best.rate else f"{best}; {found.total_steps} steps want {found.rate:g}"


def _line(trial: "Trial") -> str:
    return f"{trial.rate:g}: held-out loss {trial.loss:.4f}"


def _shown(trial: "Trial") -> None:
    typer.echo(_line(trial))


def _told(trial: "Trial") -> None:
    loss = trial.loss if trial.loss < math.inf else None
    typer.echo(jsonlib.dumps({"rate": trial.rate, "loss": loss}))
