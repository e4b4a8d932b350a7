"""`p2ptrain export`: the model of a run as a safetensors file that plain torch loads."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli import options
from node.cli.model_cmd import RunPath
from node.system import text
from node.system.errors import UsageError

if TYPE_CHECKING:
    from p2ptrain.saved.models import RunModels

SUFFIX = ".safetensors"


def export(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path(
        f"model{SUFFIX}"
    ),
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="The newest model of this node.")] = None,
    average: Annotated[
        bool, typer.Option("--average", help="The mean of the honest nodes' models: what a run's folder gives anyway.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: options.Json = False,
) -> None:
    """Write a run's model with the names of its own state_dict, for load_state_dict in plain torch."""
    _check_question(run, node, average=average)
    _check_file(out, force=force)

    from node.training.evaluation import find_models
    from node.training.model_file import metadata_of, state_of, write

    found = find_models(run, node)
    state = state_of(found)
    metadata = metadata_of(found)
    _check_file(out, force=force)  # somebody may have written it meanwhile
    write(out, state, metadata)
    sizes: dict[str, Any] = {
        "tensors": len(state),
        "parameters": found.models[0].vector_d.numel(),
        "bytes": out.stat().st_size,
    }
    if json:
        typer.echo(jsonlib.dumps({"file": str(out), **metadata, **sizes, "left_out": list(found.left_out)}))
    else:
        _tell(out, found, sizes)


def _tell(out: Path, found: "RunModels", sizes: dict[str, Any]) -> None:
    nodes = ", ".join(model.node for model in found.models)
    of = f"the mean of {nodes}" if len(found.models) > 1 else nodes
    figures = (
        f"{text.plural(sizes['tensors'], 'tensor')}, {text.amount(sizes['parameters'])} trained parameters, "
        f"{text.size(sizes['bytes'])}"
    )
    typer.echo(f"{out}: {found.models[0].task} after round {found.round}, {of}; {figures}")
    if found.left_out:
        typer.echo(f"left out: {'; '.join(found.left_out)}", err=True)
    typer.echo(f"In Python: model.load_state_dict(safetensors.torch.load_file({str(out)!r}))")


def _check_question(run: Path, node: str | None, *, average: bool) -> None:
    if not average:
        return
    if node is not None:
        raise UsageError("--node and --average contradict each other", "give one of them")
    from node.system.run_dir import node_dirs

    if node_dirs(run) == [run]:
        raise UsageError(f"{run} is the folder of one node, with nothing to average", "give the folder above it")


def _check_file(out: Path, *, force: bool) -> None:
    if out.suffix != SUFFIX:
        raise UsageError(f"{out} would be no {SUFFIX[1:]} file by its name", f"give a name that ends in {SUFFIX}")
    if out.is_dir():
        raise UsageError(f"{out} is a folder", f"give a file in it, such as {out / f'model{SUFFIX}'}")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", "make it first, or give another --out")
    if out.exists() and not force:
        raise UsageError(f"{out} is there already", "--force replaces it")
