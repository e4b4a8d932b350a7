"""`p2ptrain generate` and `p2ptrain evaluate`: what a run's checkpoints have learned."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli import options, text
from node.errors import RunError
from node.run_dir import CHECKPOINTS, node_dirs

if TYPE_CHECKING:
    from node.evaluation import LoadedModel

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder (the mean of its honest nodes' models) or a node's folder.")
]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, auto.")]


def generate(
    run: RunPath,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    length: Annotated[int, typer.Option(min=1, max=100_000, help="Bytes to add.")] = 300,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest byte.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="Of the random choices.")] = 0,
    data: options.Data = None,
    device: Device = "cpu",
    json: options.Json = False,
) -> None:
    """Print text that a run's newest checkpoint makes of a prompt."""
    from node.evaluation import mean_model

    models = _load(run, data, device)
    made = models[0].generate(
        prompt, length=length, temperature=temperature, seed=seed, x_d=mean_model(models) if len(models) > 1 else None
    )
    typer.echo(jsonlib.dumps({"text": made, **_origin(models)}) if json else made)


def evaluate(run: RunPath, data: options.Data = None, device: Device = "cpu", json: options.Json = False) -> None:
    """Measure a run's newest checkpoint on the held-out split."""
    from node.evaluation import mean_model

    models = _load(run, data, device)
    value = models[0].evaluate(mean_model(models) if len(models) > 1 else None)
    metric, origin = models[0].task.metric, _origin(models)
    if json:
        typer.echo(jsonlib.dumps({"eval_loss": value, "metric": metric, **origin}))
    else:
        what = f"mean of {text.plural(len(models), 'model')}" if len(models) > 1 else "model"
        typer.echo(f"{text.loss(value)} {metric} ({what}, round {origin['round']})")


def _load(run: Path, data: Path | None, device: str) -> list["LoadedModel"]:
    """The newest checkpoints of the run's honest nodes that have one. RunError when none has."""
    from node.evaluation import load_run

    overrides = {} if data is None else {"data": str(data.expanduser().absolute())}
    folders = [folder for folder in _folders(run) if (folder / CHECKPOINTS).is_dir()]
    if not folders:
        raise RunError(f"no node of {run} has written a checkpoint yet", "they come every node.checkpoint_every rounds")
    return [load_run(folder, device=device, overrides=overrides) for folder in folders]


def _folders(run: Path) -> list[Path]:
    from node.run_settings import is_honest

    found = node_dirs(run)
    if len(found) == 1:
        return found
    return [folder for folder in found if is_honest(folder)]


def _origin(models: list["LoadedModel"]) -> dict[str, Any]:
    return {"models": len(models), "round": min(model.round for model in models)}
