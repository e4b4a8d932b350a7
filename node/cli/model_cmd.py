"""`p2ptrain generate` and `p2ptrain evaluate`: what a run's checkpoints have learned."""

import json as jsonlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli import options
from node.system import text
from node.system.errors import RunError

if TYPE_CHECKING:
    from node.training.evaluation import LoadedModel

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
    from node.training.evaluation import mean_model

    models = _load(run, data, device)
    made = models[0].generate(
        prompt, length=length, temperature=temperature, seed=seed, x_d=mean_model(models) if len(models) > 1 else None
    )
    typer.echo(jsonlib.dumps({"text": made, **_origin(models)}) if json else made)


def evaluate(run: RunPath, data: options.Data = None, device: Device = "cpu", json: options.Json = False) -> None:
    """Measure a run's newest checkpoint on the held-out split."""
    from node.training.evaluation import adapter_gap, mean_model
    from p2ptrain.tasks.metrics import metric_units

    models = _load(run, data, device)
    found = models[0].measure(mean_model(models) if len(models) > 1 else None)
    gap = adapter_gap(models)
    value, units = found.loss, metric_units(models[0].task)
    metric, origin = models[0].task.metric, _origin(models)
    if not math.isfinite(value):
        raise RunError(
            f"the held-out loss of the model after round {origin['round']} is {value}: its training diverged",
            "give another node's folder, or train again with a lower train.learning_rate",
        )
    if json:
        own_too = {"own": found.own, "units": units} if found.own else {}
        gap_too = {} if gap is None else {"product_gap": gap.gap, "product_gap_share": gap.share}
        typer.echo(jsonlib.dumps({"eval_loss": value, "metric": metric, **own_too, **gap_too, **origin}))
    else:
        what = f"mean of {text.plural(len(models), 'model')}" if len(models) > 1 else "model"
        typer.echo(f"{text.loss(value)} {metric} ({what}, round {origin['round']})")
        if len(models) > 1 and models[0].trainer.local is not None:
            typer.echo(
                "the mean of local parameters (train.local) is no member's: "
                "`p2ptrain report RUN --cross-site` measures each member's model"
            )
        for name, own in found.own.items():
            typer.echo(f"{name}: {text.measured(own, units.get(name, ''))}")
        if gap is not None:
            typer.echo(f"product gap: {gap.words()}")


def _load(run: Path, data: Path | None, device: str) -> list["LoadedModel"]:
    """The models of the run that belong together. RunError when there is none."""
    from node.training.evaluation import load_models

    return load_models(
        run, device=device, overrides={} if data is None else {"data": str(data.expanduser().absolute())}
    )


def _origin(models: list["LoadedModel"]) -> dict[str, Any]:
    return {"models": len(models), "round": min(model.round for model in models)}
