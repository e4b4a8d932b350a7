"""`p2ptrain export`: the model of a run for other programs: plain torch, transformers, onnxruntime."""

import json as jsonlib
from dataclasses import asdict
from enum import StrEnum
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


class Format(StrEnum):
    """What to write."""

    SAFETENSORS = "safetensors"
    HF = "hf"
    ONNX = "onnx"


_SUFFIXES = {Format.SAFETENSORS: SUFFIX, Format.HF: "", Format.ONNX: ".onnx"}


def export(
    run: RunPath,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="PATH", help="The file to write, or with --to hf the folder. (default: model...)"
        ),
    ] = None,
    to: Annotated[
        Format,
        typer.Option(
            "--to",
            help="safetensors: for plain torch; hf: a folder for from_pretrained; onnx: a graph for onnxruntime.",
        ),
    ] = Format.SAFETENSORS,
    merged: Annotated[
        bool, typer.Option("--merged", help="With --to hf: LoRA adapters added to their base model, not alone.")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="With --to onnx: weights as 8-bit numbers; tells what that costs.")
    ] = False,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="The newest model of this node.")] = None,
    average: Annotated[
        bool, typer.Option("--average", help="The mean of the honest nodes' models: what a run's folder gives anyway.")
    ] = False,
    data: options.Data = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    json: options.Json = False,
) -> None:
    """Write a run's model: for load_state_dict in plain torch, for transformers, or for onnxruntime.

    For hf and onnx the run's task is built again: its data must be there, or others with --data.
    """
    _check_question(run, node, average=average)
    if merged and to is not Format.HF:
        raise UsageError("--merged is for --to hf", "an ONNX graph is always merged, safetensors have the run's names")
    if int8 and to is not Format.ONNX:
        raise UsageError("--int8 is for --to onnx", "the other formats have fp32 weights")
    place = out or Path(f"model{_SUFFIXES[to]}")
    _check_place(place, to, force=force)

    from node.training.evaluation import find_models
    from node.training.model_file import metadata_of

    found = find_models(run, node)
    metadata = metadata_of(found)
    if to is Format.SAFETENSORS:
        sizes = _write_state(place, found, metadata, force=force)
    else:
        sizes = _write_model(found, data, place, to, merged=merged, int8=int8)
    if json:
        typer.echo(jsonlib.dumps({"file": str(place), **metadata, **sizes, "left_out": list(found.left_out)}))
    else:
        _tell(place, to, found, sizes)


def _write_state(out: Path, found: "RunModels", metadata: dict[str, str], *, force: bool) -> dict[str, Any]:
    from node.training.model_file import state_of, write

    state = state_of(found)
    _check_place(out, Format.SAFETENSORS, force=force)  # somebody may have written it meanwhile
    write(out, state, metadata)
    return {"tensors": len(state), "parameters": found.models[0].vector_d.numel(), "bytes": out.stat().st_size}


def _write_model(
    found: "RunModels", data: Path | None, out: Path, to: Format, *, merged: bool, int8: bool
) -> dict[str, Any]:
    from node.training.evaluation import build_models
    from node.training.model_export import export_folder, export_graph
    from p2ptrain.training.onnx_file import bytes_of

    models = build_models(found, overrides={} if data is None else {"data": str(data.expanduser().absolute())})
    done = export_graph(models, out, int8=int8) if to is Format.ONNX else export_folder(models, out, merged=merged)
    written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) if out.is_dir() else bytes_of(out)
    sizes: dict[str, Any] = {
        "tensors": done.tensors,
        "parameters": done.parameters,
        "bytes": written,
    }
    if done.quantized is not None:
        sizes["int8"] = asdict(done.quantized)
    return sizes if done.difference is None else {**sizes, "difference": done.difference}


def _tell(out: Path, to: Format, found: "RunModels", sizes: dict[str, Any]) -> None:
    nodes = ", ".join(model.node for model in found.models)
    of = f"the mean of {nodes}" if len(found.models) > 1 else nodes
    figures = (
        f"{text.plural(sizes['tensors'], 'tensor')}, {text.amount(sizes['parameters'])} trained parameters, "
        f"{text.size(sizes['bytes'])}"
    )
    typer.echo(f"{out}: {found.models[0].task} after round {found.round}, {of}; {figures}")
    if found.left_out:
        typer.echo(f"left out: {'; '.join(found.left_out)}", err=True)
    typer.echo(f"In Python: {_how_to_open(out, to)}")
    if to is Format.ONNX and _weights_of(out).exists():
        typer.echo(f"its weights are in {_weights_of(out)}, which has to stay beside it, by that name")
    if "difference" in sizes:
        graph = "the fp32 graph's" if "int8" in sizes else "onnxruntime's"
        typer.echo(f"{graph} outputs are within {sizes['difference']:.1e} of the model's own")
    if "int8" in sizes:
        _tell_int8(sizes["int8"])


def _weights_of(graph: Path) -> Path:
    """As `data_of` (p2ptrain/training/onnx_file.py) has it, without torch."""
    return graph.with_name(f"{graph.name}.data")


def _tell_int8(it: dict[str, Any]) -> None:
    typer.echo(
        f"int8: {text.size(it['bytes'])} instead of {text.size(it['bytes_before'])}; logits within "
        f"{it['logit_error']:.2g} of the fp32 graph's, whose largest is {it['largest_logit']:.3g}"
    )
    if it["loss"] is not None:
        typer.echo(f"held-out loss: {it['loss_before']:.4f} nats in fp32, {it['loss']:.4f} in int8")


def _how_to_open(out: Path, to: Format) -> str:
    if to is Format.SAFETENSORS:
        return f"model.load_state_dict(safetensors.torch.load_file({str(out)!r}))"
    if to is Format.ONNX:
        return f"onnxruntime.InferenceSession({str(out)!r})"
    if (out / "adapter_config.json").is_file():
        return f"peft.AutoPeftModel.from_pretrained({str(out)!r})"
    architecture = jsonlib.loads((out / "config.json").read_text())["architectures"][0]
    return f"transformers.{architecture}.from_pretrained({str(out)!r})"


def _check_question(run: Path, node: str | None, *, average: bool) -> None:
    if not average:
        return
    if node is not None:
        raise UsageError("--node and --average contradict each other", "give one of them")
    from node.system.run_dir import node_dirs

    if node_dirs(run) == [run]:
        raise UsageError(f"{run} is the folder of one node, with nothing to average", "give the folder above it")


def _check_place(out: Path, to: Format, *, force: bool) -> None:
    if not out.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", "make it first, or give another --out")
    if to is Format.HF:
        _check_folder(out, force=force)
    else:
        _check_file(out, _SUFFIXES[to], force=force)


def _check_folder(out: Path, *, force: bool) -> None:
    from node.training.replaced_folder import put_back

    if put_back(out):
        typer.echo(f"{out}: the last export was killed while it replaced it; it is the one before again", err=True)
    if not out.exists():
        return
    if not force:
        raise UsageError(f"{out} is there already", "--force replaces it")
    if not any((out / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise UsageError(f"{out} is no folder with a model, and is not replaced", "give another --out")


def _check_file(out: Path, suffix: str, *, force: bool) -> None:
    if out.suffix != suffix:
        raise UsageError(f"{out} would be no {suffix[1:]} file by its name", f"give a name that ends in {suffix}")
    if out.is_dir():
        raise UsageError(f"{out} is a folder", f"give a file in it, such as {out / f'model{suffix}'}")
    for each in (out, _weights_of(out)) if suffix == _SUFFIXES[Format.ONNX] else (out,):
        if each.exists() and not force:
            raise UsageError(f"{each} is there already", "--force replaces it")
