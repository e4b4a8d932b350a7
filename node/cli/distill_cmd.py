"""`p2ptrain distill`: a smaller model that learns what a run's model says."""

import json as jsonlib
import math
import os
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli import options
from node.cli.telling import Telling
from node.system import interrupts, text
from node.system.errors import UsageError

if TYPE_CHECKING:
    from node.training.distilling import Student
    from p2ptrain.training.distillation import DistillConfig

_SMALL = ("--to", "onnx", "--int8", "--out", "model.onnx")


def distill(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="A run folder, or a node's: the teacher. Of several, the mean of what they say."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The student's folder, a new one.")],
    task_set: Annotated[
        list[str] | None,
        typer.Option(
            "--task-set", metavar="KEY=VALUE", help="An option of the student's task, such as size=pico. Repeatable."
        ),
    ] = None,
    ensemble: Annotated[
        bool, typer.Option("--ensemble", help="Every node's model is a teacher: not the mean of their weights.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the student. (default: the run's)")] = None,
    temperature: Annotated[
        float, typer.Option(help="What both models' logits are divided by; 2 to 4 are usual.")
    ] = 2.0,
    alpha: Annotated[
        float,
        typer.Option(help="Largest share of the teacher's words in the loss; 0: the same model without a teacher."),
    ] = 0.5,
    fading: Annotated[
        bool,
        typer.Option(
            "--fading/--constant", help="Whether that share falls as the student catches up with its teacher."
        ),
    ] = True,
    learning_rate: Annotated[float | None, typer.Option(min=0.0, help="Its peak. (default: the run's)")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the student. (default: the run's)")] = None,
    data: options.Data = None,
    without_privacy: Annotated[
        bool,
        typer.Option(
            "--without-privacy",
            help="Of a run with privacy.privatizer: read the data again, which its ledger does not cover.",
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, auto.")] = "auto",
    json: options.Json = False,
) -> None:
    """Train a smaller model on what a run's model says of the run's data (knowledge distillation).

    The student's folder is one for evaluate, generate and export. Ctrl-C ends the training early and keeps the student.
    """
    _check_out(out)
    given = _task_options(task_set or [])
    stop: list[Callable[[], object]] = []
    with interrupts.ending(stop):
        from node.training.distilling import Wishes, student_of, teach, write_student

        wishes = Wishes(
            task_options=given,
            data_options={} if data is None else options.flags(data=data)["task"],
            steps=steps,
            learning_rate=learning_rate,
            seed=seed,
            device=device,
            distill=_settings(temperature, alpha, fading),
            ensemble=ensemble,
            without_privacy=without_privacy,
        )
        with Telling("loading the teacher", quiet=json) as tell:
            student = student_of(runs, wishes)
            pressed = threading.Event()
            stop.append(pressed.set)
            taken = teach(student, stopped=pressed.is_set, tell=tell)
        if taken:
            _told(student, out, taken, write_student(student, out, taken), json=json)
        else:
            typer.echo("interrupted before the first step: nothing is written", err=True)


def _settings(temperature: float, alpha: float, fading: bool) -> "DistillConfig":
    from p2ptrain.training.distillation import DistillConfig

    try:
        return DistillConfig(temperature=temperature, alpha=alpha, fading=fading)
    except ValueError as error:
        raise UsageError(f"--{error}", "2 and 0.5 are the defaults") from error


def _told(student: "Student", out: Path, taken: int, loss: float, *, json: bool) -> None:
    figures: dict[str, Any] = {
        "folder": str(out),
        "task": student.task,
        "parameters": student.trainer.numel,
        "steps": taken,
        "metric": student.metric,
        "teachers": student.teachers,
        "teacher_parameters": student.teacher_parameters,
        "teacher_loss": student.teacher_loss,
        "before": student.before,
        "eval_loss": loss,
    }
    if json:
        typer.echo(jsonlib.dumps({key: _number(value) for key, value in figures.items()}))
        return
    of = "a teacher" if student.teachers == 1 else f"{student.teachers} teachers"
    typer.echo(
        f"{out}: {student.task} with {text.amount(student.trainer.numel)} parameters, of {of} with "
        f"{text.amount(student.teacher_parameters)}, after {text.plural(taken, 'step')}"
    )
    typer.echo(
        f"held-out loss: teacher {text.loss(student.teacher_loss)}, student {text.loss(student.before)} before, "
        f"{text.loss(loss)} after, {student.metric}"
    )
    typer.echo(f"as a small graph: {shlex.join(['p2ptrain', 'export', str(out), *_SMALL])}")


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_out(out: Path) -> None:
    parent = out.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", "make it first, or give another --out")
    if out.exists():
        raise UsageError(f"{out} is there already", "give another --out")
    if not os.access(parent, os.W_OK):
        raise UsageError(f"{out.parent} cannot be written", "give another --out")


def _task_options(sets: list[str]) -> dict[str, Any]:
    from node.config.toml_source import parse_value

    found: dict[str, Any] = {}
    for given in sets:
        key, is_pair, value = given.partition("=")
        if not is_pair or not key.isidentifier() or key == "name":
            raise UsageError(f"--task-set {given} is no option of the task", "write one such as --task-set size=pico")
        found[key] = parse_value(value.strip())
    return found
