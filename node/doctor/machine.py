"""The machine: Python and packages, device, cores, memory, disk, open files, clock; a function for each."""

import os
import re
import resource
import shutil
import sys
import time
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

from node.config.schema import Config
from node.doctor.finding import Finding, Level, Model, Subject
from node.roles.assembly import own_trainer, run_info
from node.roles.budget_plan import BudgetPlan, DiskPlan, plan_disk, plan_memory
from node.roles.budgeting import check_budget, needs_of, plan_words, spare_memory, with_threads
from node.roles.memory_forecast import memory_forecast
from node.roles.task_check import BYTES_PER_PARAMETER_GPU
from node.system import text
from node.system.cgroups import machine_memory
from node.system.disk import lies_in_memory
from node.system.errors import UsageError
from node.system.process_use import cores_of_process
from node.system.run_dir import EPOCH
from node.training.checkpoint_room import checkpoint_bytes, estimates_bytes, expected_bytes, optimizer_bytes
from p2ptrain.privacy.base import Release
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.tasks.base import identity_of
from p2ptrain.training import Trainer
from p2ptrain.training.logits_trainer import LogitsTrainer, is_of_logits
from p2ptrain.training.model import frozen_bytes
from p2ptrain.training.preflight import Preflight, is_built_in, preflight

OTHER_FILES: Final = 64
"""Python's modules, logs, the listeners and data connections of neighbours."""

CLOCK_SLACK_S: Final = 120.0
"""Clocks that are set by NTP differ by less than a second, and by hand by a minute or two."""

ASKER: Final = "doctor"
"""Whose data the steps are measured on: a name in place of a peer id."""

_SPECIFIER: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")


def python_and_packages() -> Finding:
    """Check Python and the packages against what the installed distribution says that it needs."""
    version = ".".join(map(str, sys.version_info[:3]))
    try:
        about = metadata.metadata("p2ptrain")
    except metadata.PackageNotFoundError:
        return Finding(check="packages", level="warning", seen="p2ptrain is not installed", fix="make setup")
    wrong = [] if fits(version, about["Requires-Python"] or "") else [f"Python {version} ({about['Requires-Python']})"]
    needed = [line for line in metadata.requires("p2ptrain") or () if "extra ==" not in line]
    wrong += [complaint for line in needed if (complaint := _complaint(line)) is not None]
    if wrong:
        return Finding(
            check="packages", level="problem", seen=", ".join(wrong), fix="install what is needed: make setup"
        )
    return Finding(check="packages", level="ok", seen=f"Python {version}, {len(needed)} packages as needed")


def _complaint(line: str) -> str | None:
    name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is missing"
    return None if fits(version, line) else f"{name} {version} ({line.removeprefix(name)})"


def fits(version: str, specifiers: str) -> bool:
    """Return whether a version satisfies specifiers like `>=2.9,<3`. Local and pre-release parts are ignored."""
    mine = _numbers(version)
    return all(_holds(operator, mine, _numbers(bound)) for operator, bound in _SPECIFIER.findall(specifiers))


def _holds(operator: str, mine: tuple[int, ...], bound: tuple[int, ...]) -> bool:
    width = max(len(mine), len(bound))
    one, other = (each + (0,) * (width - len(each)) for each in (mine, bound))
    order = (one > other) - (one < other)
    return {">=": order >= 0, "<=": order <= 0, "==": order == 0, "!=": order != 0, "<": order < 0, ">": order > 0}[
        operator
    ]


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version.strip())
    return tuple(map(int, match[0].split("."))) if match else ()


def model_of(subject: Subject) -> Model:
    """Build the configured model as a node would. Raises TaskError, ValueError, OSError: what keeps a node from it."""
    assert subject.learning is not None
    config = with_threads(subject.learning)
    trainer = own_trainer(config, ASKER, spend=_told_to_nobody)
    task, shard, seed = trainer.task, trainer.shard, trainer.data_seed
    logits = LogitsTrainer(trainer) if is_of_logits(config.train) else None
    if logits is not None:
        run = run_info(config, logits.fingerprint, logits.initial_vector())
    else:
        run = run_info(config, trainer.fingerprint, trainer.vector(), identity_of(task, trainer.model))
    trial = None if is_built_in(task) else preflight(task, config.train, shard, data_seed=seed)
    return Model(
        parameters=trainer.numel,
        device=str(trainer.device),
        run=run,
        trainer=trainer,
        logits=logits,
        trial=trial,
        frozen_bytes=frozen_bytes(trainer.model),
    )


def _told_to_nobody(release: Release) -> None:
    """Steps that are measured are private ones where the node's are, and nothing of them leaves this process."""


def task_of(trial: Preflight) -> Finding:
    """Report what trying the user's own task has shown."""
    doubts = trial.doubts()
    level: Level = "warning" if doubts else "ok"
    return Finding(check="task", level=level, seen=trial.words(), fix="; ".join(doubts))


def device_and_cores(subject: Subject, model: Model) -> Finding:
    """Report where the node would train, and with how many threads."""
    import torch

    assert subject.learning is not None
    cores = cores_of_process()
    threads = with_threads(subject.learning).train.threads or torch.get_num_threads()
    seen = f"{model.parameters:,} parameters on {model.device}, "
    seen += f"{text.plural(cores, 'core')}, {text.plural(threads, 'thread')}"
    if model.device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(model.device)
        need = BYTES_PER_PARAMETER_GPU * model.parameters
        seen += f"; {torch.cuda.get_device_name(model.device)}, {text.size(free)} of {text.size(total)} free"
        if need > free:
            fix = "a smaller model, a smaller train.batch_size, or train.device=cpu"
            return Finding(check="device", level="problem", seen=f"{seen}, {text.size(need)} needed", fix=fix)
    elif threads > cores:
        fix = f"--set train.threads={max(1, cores - 1)}: one core for the network, the codecs and the event loop"
        return Finding(check="device", level="warning", seen=seen, fix=fix)
    return Finding(check="device", level="ok", seen=seen)


def memory(subject: Subject, model: Model) -> Finding:
    """Check the available memory against what docs/operations.md says of a model of this size."""
    assert subject.learning is not None
    config = subject.learning
    need = memory_forecast(model.parameters, model.device, config, kept=model.kept_bytes).total
    available = min(psutil.virtual_memory().available, machine_memory())
    seen = f"{text.size(available)} available, about {text.size(need)} needed with "
    seen += text.plural(subject.network.degree, "neighbour")
    if need <= available:
        return Finding(check="memory", level="ok", seen=seen)
    on_disk = "" if config.node.estimates_on == "disk" else "node.estimates_on=disk, "
    fix = f"{on_disk}a smaller model or network.degree, or close other programs"
    least = memory_forecast(model.parameters, model.device, config, kept=model.kept_bytes, neighbours=1)
    return Finding(check="memory", level="problem" if least.total > available else "warning", seen=seen, fix=fix)


def budget(subject: Subject, model: Model) -> Finding | None:
    """Plan as a node would within its budget, and say what it would choose; None where it has no budget."""
    config = subject.learning
    if config is None or model.trainer is None or not config.budget.is_set:
        return None
    try:
        plan, room = _plans(subject, config, model, model.trainer)
    except UsageError as error:
        return Finding(check="budget", level="problem", seen=error.message, fix=error.hint)
    if plan.config.budget.memory != config.budget.memory:
        fix = f"a --memory of less than the {text.size(machine_memory())} that this machine has for all its programs"
        return Finding(check="budget", level="warning", seen=plan_words(plan, room), fix=fix)
    return Finding(check="budget", level="ok", seen=plan_words(plan, room))


def as_planned(subject: Subject, model: Model) -> None:
    """Have the model's trainer take its steps as the node would: with its optimizer on disk, and as many examples at a
    time, as is set or as its budget leaves room for. Where a node would not start, it stays as it is. Call it after
    all that looks at a model without steps."""
    config, trainer = subject.learning, model.trainer
    assert config is not None, "it has a trainer"
    assert trainer is not None, "it is to be measured"
    if config.budget.is_set:
        with suppress(UsageError):
            config = _plans(subject, config, model, trainer)[1].config
    if config.node.micro_batch:
        trainer.take_at_a_time(config.node.micro_batch)
    if config.node.optimizer_on == "disk" and trainer.device.type == "cpu":
        with suppress(OSError):  # no room, or no right: `disk` tells
            trainer.keep_optimizer_in(partial(NamelessFile, _place_of(subject)), lambda error: None)


def _plans(subject: Subject, config: Config, model: Model, trainer: Trainer) -> tuple[BudgetPlan, DiskPlan]:
    """What a node would choose within its budget. UsageError."""
    check_budget(config, user_loop=False)
    least = trainer.least_at_a_time()
    in_memory = lies_in_memory(subject.run_dir)
    need = needs_of(trainer, least, in_memory=in_memory)
    plan = plan_memory(config, need, least_examples=least, machine=machine_memory(), in_memory=in_memory)
    return plan, plan_disk(plan.config, _trained(model), spare_memory=spare_memory(plan), in_memory=in_memory)


def _place_of(subject: Subject) -> Path:
    """The run folder, or the nearest one above it that exists."""
    wanted = subject.run_dir.absolute()
    return next(each for each in (wanted, *wanted.parents) if each.exists())


def disk(subject: Subject, model: Model | None) -> Finding:
    """Check free space at the run folder against the checkpoints that are kept and the one being written."""
    place = _place_of(subject)
    if not place.is_dir() or not os.access(place, os.W_OK):
        fix = "give a folder that may be written, with --run-dir"
        return Finding(check="disk", level="problem", seen=f"{place} cannot be written", fix=fix)
    free = shutil.disk_usage(place).free
    checkpoints = _checkpoints_kept(subject, model) + 1
    if model is None:
        one = 0
    elif subject.learning is None:
        one = expected_bytes(model.parameters)
    else:
        one = checkpoint_bytes(subject.learning, _trained(model))
    need = one * checkpoints
    seen = f"{text.size(free)} free at {place}, {text.size(need)} for {text.plural(checkpoints, 'checkpoint')}"
    if model and subject.learning:
        estimates = estimates_bytes(subject.learning, model.parameters)
        optimizer = optimizer_bytes(subject.learning, _trained(model))
        need += estimates + optimizer
        seen += f", {text.size(estimates)} for neighbours' models" if estimates else ""
        seen += f", {text.size(optimizer)} for the optimizer" if optimizer else ""
    fix = "free some space, give another --run-dir, or lower node.checkpoint_keep"
    if need > free:
        return Finding(check="disk", level="problem", seen=seen, fix=fix)
    return Finding(check="disk", level="warning" if 2 * need > free else "ok", seen=seen, fix=fix * (2 * need > free))


def _checkpoints_kept(subject: Subject, model: Model | None) -> int:
    """How many a node would keep: those that fit into `budget.disk`, where it has one; one where not even that does, of
    which `budget` tells."""
    config = subject.learning
    if config is None or model is None or config.budget.disk is None:
        return subject.node.checkpoint_keep
    try:
        return plan_disk(config, _trained(model)).config.node.checkpoint_keep
    except UsageError:
        return 1


def _trained(model: Model) -> int:
    return model.parameters if model.trainer is None else model.trainer.trained_numel


def open_files(subject: Subject) -> Finding:
    """Check the limit on file descriptors against the connections that the configuration allows."""
    bounds = subject.network.bounds()
    need = bounds.inbound + bounds.dialled + bounds.handshakes + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return Finding(check="open files", level="ok", seen=f"at most {soft}, {need} needed")
    able = "" if hard != resource.RLIM_INFINITY and hard < need else f"ulimit -n {max(4096, need)}, or "
    fix = f"{able}LimitNOFILE= in the service, or a lower network.max_connections"
    return Finding(check="open files", level="warning", seen=f"at most {soft}, {need} needed", fix=fix)


def clock(subject: Subject) -> Finding:
    """Check what can be known without asking anybody: the clock is not earlier than what was written here before."""
    now = time.time()
    written = Path(__file__).stat().st_mtime
    earlier = max(written, *_epochs(subject))
    if earlier > now + CLOCK_SLACK_S:
        seen = f"it says {time.strftime('%Y-%m-%d %H:%M', time.gmtime(now))} UTC, and files here are from later"
        return Finding(check="clock", level="warning", seen=seen, fix="set the clock (timedatectl set-ntp true)")
    return Finding(check="clock", level="ok", seen="not earlier than what was written here before")


def _epochs(subject: Subject) -> list[float]:
    """When this node's chains began, as far as its folder says."""
    try:
        return [int((subject.run_dir / subject.node.name / EPOCH).read_text("ascii")) / 1000]
    except (OSError, ValueError):
        return [0.0]
