"""A node's budget: sizes as people write them, what is planned within it, what holds it, and what is refused."""

import errno
import math
import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_checkpoint_room import make

from gossip.core.api import RunInfo
from gossip.core.identity import Identity
from gossip.core.ids import Digest, RunId
from gossip.transport.memory.network import MemoryNetwork
from node.cli.options import flags
from node.config.budget_section import budget_in
from node.config.schema import Config, from_raw
from node.doctor import machine
from node.doctor.finding import Model, Subject
from node.doctor.machine import budget
from node.events.event_types import BudgetPlanned
from node.events.journal import Journal
from node.events.library_logs import LOG_BYTES
from node.events.log import MAX_BYTES, EventLog, older
from node.events.progress import NodeProgress
from node.metrics.live_metrics import Readings
from node.metrics.node_metrics import Metrics
from node.roles import assembly, budgeting
from node.roles.assembly import NodeContext, check_runnable, own_trainer, why_not_filed
from node.roles.budget_plan import LEAST_EVENT_BYTES, plan_disk, plan_memory
from node.roles.budgeting import check_budget, disk_room, needs_of, within_budget
from node.roles.logits_check import check_logits
from node.roles.memory_forecast import memory_forecast
from node.roles.memory_forecast import optimizer_bytes as state_bytes
from node.system import cgroups, disk, text
from node.system.byte_sizes import EXAMPLE, byte_size
from node.system.cgroups import HeldProcess, Hierarchy, Limits, hierarchies_in, machine_memory, remove_stale
from node.system.errors import UsageError
from node.system.process_use import held_bytes
from node.top.screen import _memory
from node.training.budget_meter import BudgetMeter
from node.training.budget_watch import SETTLE_S, BudgetWatch
from node.training.checkpoint import CheckpointStore
from node.training.checkpoint_room import estimates_bytes, expected_bytes, optimizer_bytes
from node.training.estimates import MAX_DEPARTED
from node.training.executors import InlineExecutor
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.tasks.base import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.logits_trainer import LogitsTrainer

PARAMETERS = 3_000_000
KEPT = 6_000_000
"""Bytes that an example keeps for the backward pass."""

FEW_PARAMETERS = 500_000
LITTLE_DISK = 96_000_000
"""Bytes of a disk that all fits into, with the smallest logs."""

MIB = 1 << 20


def config_of(**sections: Any) -> Config:
    return from_raw({"task": {"name": "digits"}, **sections})


def need(config: Config) -> int:
    """What a node takes whose program takes nothing."""
    kept = KEPT * (config.node.micro_batch or config.train.batch_size)
    return memory_forecast(PARAMETERS, "cpu", config, kept=kept, program=0).total


def test_visitors_are_within_the_budget_of_memory_or_it_is_refused() -> None:
    """Strangers would otherwise have the kernel end the node."""
    visits = {"listen": "127.0.0.1:8443"}
    budget = need(config_of(visits={**visits, "most_a_round": 8}))
    few = config_of(visits={**visits, "most_a_round": 8}, budget={"memory": budget})
    assert plan_memory(few, need).moves == ()
    with pytest.raises(UsageError, match=r"visits\.most_a_round or network\.degree"):
        plan_memory(config_of(visits={**visits, "most_a_round": 1024}, budget={"memory": budget}), need)


# Sizes


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("6GiB", 6 << 30),
        ("6 gib", 6 << 30),
        ("500MB", 500_000_000),
        ("1.5kB", 1500),
        (4096, 4096),
        ("2e9", 2_000_000_000),
    ],
)
def test_sizes_are_read_as_people_write_them(written: object, size: int) -> None:
    assert byte_size(written) == size


@pytest.mark.parametrize(
    "written", ["", "6 quarks", "GiB", "-1GB", "0", 0, True, None, "nan", "1e99GB" + "0" * 40, [1]]
)
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="such as 6GiB"):
        byte_size(written)


@given(st.integers(1, 1 << 50), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_a_size_in_binary_units_is_exact(count: int, unit: str) -> None:
    power = ("KiB", "MiB", "GiB").index(unit) + 1
    if count < 1 << 53:
        assert byte_size(f"{count}{unit}") == count << (10 * power)


@given(st.text(max_size=60))
def test_any_text_is_a_size_or_refused_in_words(text: str) -> None:
    try:
        size = byte_size(text)
    except ValueError as error:
        size, said = 1, str(error)
    else:
        said = EXAMPLE
    assert size >= 1
    assert EXAMPLE in said


# Settings


def test_options_are_settings_of_the_section() -> None:
    raw = flags(memory="6GiB", gpu_memory="4GiB", disk="20GiB", cpu=2)
    budget = from_raw(raw).budget
    assert (budget.memory, budget.gpu_memory, budget.disk, budget.cpu) == (6 << 30, 4 << 30, 20 << 30, 2)
    assert budget_in(raw) == budget
    assert from_raw({"budget": from_raw(raw).model_dump(mode="json")["budget"]}).budget == budget


def test_nothing_is_bounded_unless_it_is_set() -> None:
    assert not Config().budget.is_set
    assert "budget" not in flags()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"memory": "lots"}, "budget.memory: no size: write a number with GiB"),
        ({"cpu": 0}, "budget.cpu: input should be greater than 0"),
        ({"cpu": math.inf}, "budget.cpu: input should be less than or equal to 65536"),
        ({"cpu": 1e30}, "budget.cpu: input should be less than or equal to 65536"),
        ({"memroy": "6GiB"}, "unknown key budget.memroy, did you mean budget.memory?"),
        ("6GiB", "budget"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(section: object, said: str) -> None:
    for read in (from_raw, budget_in):
        with pytest.raises(UsageError) as refused:
            read({"budget": section})
        assert said in refused.value.line()
        assert "\n" not in refused.value.line()


@pytest.mark.parametrize(
    "sections", [{"node": {"lane": "process"}}, {"node": {"role": "observer"}}], ids=["apart", "observer"]
)
def test_who_cannot_have_a_budget_is_told(sections: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"\[budget\] is not for"):
        check_budget(config_of(budget={"memory": "1GiB"}, **sections), user_loop=False)
    check_budget(config_of(**sections), user_loop=True)


@pytest.mark.parametrize(
    "sections",
    [{"train": {"optimizer": "muon"}}, {"sync": {"strategy": "des_loc"}}, {"node": {"lane": "process"}}],
    ids=["muon", "des_loc", "apart"],
)
def test_an_optimizer_that_cannot_lie_on_disk_is_refused(sections: dict[str, Any]) -> None:
    node = {"optimizer_on": "disk", **sections.pop("node", {})}
    with pytest.raises(UsageError, match=r"node\.optimizer_on=disk: "):
        check_runnable(config_of(node=node, **sections))


# Plans


def test_what_fits_is_left_as_it_is() -> None:
    config = config_of(budget={"memory": "1TB"})
    plan = plan_memory(config, need)
    assert plan.config == config
    assert plan.moves == ()


def test_what_costs_least_is_moved_first() -> None:
    config = config_of()
    seen: list[tuple[str, ...]] = []
    budget = need(config)
    while True:
        try:
            plan = plan_memory(config_of(budget={"memory": budget}), need)
        except UsageError as error:
            refused = error.line()
            break
        assert plan.needed <= budget
        if plan.moves not in seen:
            seen.append(plan.moves)
        budget = plan.needed - 1
    assert "at least; give it that much" in refused
    disk = "neighbours' models on disk", "optimizer on disk"
    assert seen == [
        (),
        disk[:1],
        disk,
        *((*disk, f"{count} examples at a time") for count in (8, 4, 2)),
        (*disk, "1 example at a time"),
    ]


@given(st.integers(1, 400_000_000), st.integers(1, 64), st.sampled_from(["adamw", "sgd", "muon"]))
def test_a_plan_stays_within_its_budget_or_is_refused_with_what_is_needed(
    budget: int, batch: int, optimizer: str
) -> None:
    config = config_of(budget={"memory": budget}, train={"batch_size": batch, "optimizer": optimizer})
    try:
        plan = plan_memory(config, need)
    except UsageError:
        node = replace(config.node, estimates_on="disk", micro_batch=1)
        if not why_not_filed(config):
            node = replace(node, optimizer_on="disk")
        assert need(config.model_copy(update={"node": node})) > budget
        return
    assert plan.needed == need(plan.config) <= budget
    assert plan.config.train == config.train  # what members agree on


def test_a_budget_beyond_the_machine_is_planned_within_it_and_told() -> None:
    least = need(config_of())
    plan = plan_memory(config_of(budget={"memory": "1TB"}), need, machine=least - 1)
    assert plan.needed < least
    assert plan.config.budget.memory == least - 1
    assert plan.moves[0] == "all that this machine has, and not the 1.0 TB that were asked for"
    assert plan_memory(config_of(budget={"memory": "1TB"}), need, machine=10**12).moves == ()
    with pytest.raises(UsageError, match=r"the memory of this machine, 1\.0 kB, is too little: this node needs"):
        plan_memory(config_of(budget={"memory": "1TB"}), need, machine=1000)


def test_a_node_holds_no_more_than_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgeting, "machine_memory", lambda: 20_000 * MIB)
    held = 0
    budgeted = within_budget(config_of(budget={"memory": "1TB"}), around_in(tmp_path), used=lambda: held)
    assert budgeting.limits_of(budgeted.config.budget).memory == 20_000 * MIB
    (watch,), trainer = budgeted.watches, budgeted.learned[0]
    assert isinstance(watch, BudgetWatch)
    assert isinstance(trainer, Trainer)
    held = 19_990 * MIB
    watch.look(0.0)
    assert trainer.micro_batch is not None


def test_models_of_neighbours_that_have_left_have_room_in_a_budget(tmp_path: Path) -> None:
    config = config_of(network={"degree": 4})
    trainer = own_trainer(config, "node")
    need = needs_of(trainer, 1, lambda: 0)
    on_disk = config.model_copy(update={"node": replace(config.node, estimates_on="disk")})
    most = estimates_bytes(on_disk, trainer.numel)  # what the same models take there
    assert most == (4 + MAX_DEPARTED) * 4 * trainer.numel
    assert need(config) - need(on_disk) == pytest.approx(budgeting.SPARE * most, abs=2)
    allreduce = config_of(sync={"strategy": "allreduce"})
    assert budgeting.departed_bytes(allreduce, 1000) == 0


def test_a_folder_in_memory_is_told_from_one_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path.stat().st_dev
    number, mounts = f"{os.major(device)}:{os.minor(device)}", tmp_path / "mountinfo"
    monkeypatch.setattr(disk, "MOUNTS", mounts)
    assert not disk.lies_in_memory(tmp_path), "a system that does not tell"
    for kind, expected in (("ext4", False), ("tmpfs", True), ("ramfs", True)):
        mounts.write_text(
            f"1 0 0:0 / /proc rw - proc proc rw\n\n9 1 {number} / / rw,noatime shared:1 - {kind} none rw\n"
        )
        assert disk.lies_in_memory(tmp_path / "run" / "checkpoint") is expected
        assert not disk.lies_in_memory(Path("/proc/self"))


def test_a_run_folder_in_memory_counts_and_nothing_is_moved_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts its pages, and ends the node for them."""
    asked = config_of(budget={"memory": "2GB"})
    on_disk = within_budget(asked, around_in(tmp_path), used=lambda: 0)
    monkeypatch.setattr(budgeting, "lies_in_memory", lambda folder: True)
    held = within_budget(asked, around_in(tmp_path), used=lambda: 0)
    parameters = held.learned[1].numel()
    assert held.disk.event_bytes < on_disk.disk.event_bytes, "logs would fill the memory"
    assert held.memory.needed - on_disk.memory.needed == held.disk.needed + 4 * parameters
    kept = held.config.node.checkpoint_keep
    assert kept == asked.node.checkpoint_keep > 1
    trainer, budget = held.learned[0], held.memory.needed
    seen: list[tuple[str, ...]] = []
    assert isinstance(trainer, Trainer)
    need = needs_of(trainer, 1, lambda: 0, in_memory=True)
    with suppress(UsageError):
        while True:
            plan = plan_memory(config_of(budget={"memory": budget}), need, in_memory=True)
            assert (plan.config.node.estimates_on, plan.config.node.optimizer_on) == ("memory", "memory")
            seen.append(plan.moves)
            budget = plan.needed - 1
    assert list(dict.fromkeys(seen))[:3] == [
        ("with the run folder, which lies in memory",),
        ("with the run folder, which lies in memory", "1 checkpoint kept"),
        ("with the run folder, which lies in memory", "1 checkpoint kept", "8 examples at a time"),
    ]
    with pytest.raises(UsageError, match="this node with its run folder, which lies in memory, needs"):
        within_budget(config_of(budget={"memory": "1MB"}), around_in(tmp_path), used=lambda: 0)


def test_files_in_memory_are_watched_with_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events.jsonl").write_bytes(bytes(1000))
    for in_memory in (False, True):
        monkeypatch.setattr(budgeting, "lies_in_memory", lambda folder, answer=in_memory: answer)
        budgeted = within_budget(config_of(budget={"memory": "20GB"}), around_in(tmp_path), used=lambda: 5)
        (watch,) = budgeted.watches
        assert isinstance(watch, BudgetWatch)
        assert watch._used() == (1005 if in_memory else 5)


def test_who_shares_logits_may_have_a_budget_of_cores(tmp_path: Path) -> None:
    config = config_of(task={"name": "digits", "public": 300}, train={"shares": "logits"}, budget={"cpu": 1})
    check_logits(config)
    check_budget(config, user_loop=False)
    budgeted = within_budget(config, around_in(tmp_path))
    assert isinstance(budgeted.learned[0], LogitsTrainer)
    assert budgeted.config.train.threads == 1
    assert budgeted.watches == []


def test_the_memory_of_a_container_is_what_the_machine_has(tmp_path: Path) -> None:
    home = tmp_path / "service" / "inner"
    home.mkdir(parents=True)
    (home / "memory.max").write_text("max\n")
    tree = Hierarchy(home, 2, frozenset(cgroups.KINDS))
    assert machine_memory([tree]) == machine_memory([])
    (home.parent / "memory.max").write_text(f"{64 * MIB}\n")
    assert machine_memory([tree]) == 64 * MIB
    (home / "memory.limit_in_bytes").write_text(f"{32 * MIB}\n")
    assert machine_memory([Hierarchy(home, 1, frozenset({"memory"}))]) == 32 * MIB


def test_groups_keep_their_models_in_memory() -> None:
    config = config_of(
        sync={"strategy": "allreduce"}, budget={"memory": need(config_of(sync={"strategy": "allreduce"})) - 1}
    )
    assert plan_memory(config, need).config.node.estimates_on == "memory"


def test_as_many_checkpoints_are_kept_as_the_disk_budget_has_room_for() -> None:
    plan = plan_disk(config_of(budget={"disk": "1TB"}), PARAMETERS)
    assert (plan.moves, plan.config.node.checkpoint_keep, plan.event_bytes) == ((), 3, MAX_BYTES)
    whole = plan_disk(config_of(budget={"disk": LITTLE_DISK}), FEW_PARAMETERS)
    assert (whole.moves, whole.config.node.checkpoint_keep, whole.event_bytes) == ((), 3, LEAST_EVENT_BYTES)
    fewer = plan_disk(config_of(budget={"disk": whole.needed - 1}), FEW_PARAMETERS)
    assert (fewer.moves, fewer.config.node.checkpoint_keep) == (("2 checkpoints kept",), 2)
    with pytest.raises(UsageError, match=r"budget\.disk of 1\.0 MB is too little: this node needs"):
        plan_disk(config_of(budget={"disk": "1MB"}), PARAMETERS)


def test_where_two_checkpoints_alone_fit_the_optimizers_state_is_kept_in_memory() -> None:
    state, one = state_bytes(config_of(), FEW_PARAMETERS), expected_bytes(FEW_PARAMETERS)
    assert state // FEW_PARAMETERS == 8
    whole = plan_disk(config_of(budget={"disk": LITTLE_DISK}), FEW_PARAMETERS)
    smallest = whole.needed - (whole.config.node.checkpoint_keep - 1) * one
    on_disk = plan_disk(config_of(budget={"disk": smallest}), FEW_PARAMETERS)
    assert not on_disk.state_in_memory
    assert on_disk.needed == smallest
    budget = config_of(budget={"disk": smallest - 1})
    for spare in (None, state):
        plan = plan_disk(budget, FEW_PARAMETERS, spare_memory=spare)
        assert plan.state_in_memory
        assert plan.needed == smallest - state
        assert plan.moves == ("1 checkpoint kept", "4.0 MB more of memory while a checkpoint is written")
    with pytest.raises(UsageError) as refused:
        plan_disk(budget, FEW_PARAMETERS, spare_memory=state - 3_000_000)
    assert refused.value.line().endswith("give it that much, or budget.memory 3.0 MB more")
    with pytest.raises(UsageError, match=f"needs {text.size(smallest - state)} at least; give it that much, or lower"):
        plan_disk(config_of(budget={"disk": smallest - state - 1}), FEW_PARAMETERS)


@given(st.integers(1, 10**13), st.none() | st.integers(0, 10**8))
def test_whatever_a_plan_of_the_disk_lets_be_written_fits_into_it(disk: int, spare: int | None) -> None:
    """Two checkpoints, the state apart, and full logs."""
    try:
        plan = plan_disk(config_of(budget={"disk": disk}), PARAMETERS, spare_memory=spare)
    except UsageError:
        return
    one, state = expected_bytes(PARAMETERS), state_bytes(config_of(), PARAMETERS)
    apart = 0 if plan.state_in_memory else state
    taken = (plan.config.node.checkpoint_keep + 1) * one + apart + 2 * (plan.event_bytes + LOG_BYTES)
    assert taken <= plan.needed <= disk
    assert not plan.state_in_memory or spare is None or spare >= state


def test_what_may_be_written_is_the_budget_without_the_folder_and_files_without_names(tmp_path: Path) -> None:
    store = tmp_path / "checkpoint"
    assert disk_room(plan_disk(config_of(), PARAMETERS), store, PARAMETERS) is None
    config = config_of(budget={"disk": "1GB"}, node={"estimates_on": "disk", "optimizer_on": "disk"})
    plan = plan_disk(config, PARAMETERS)
    room = disk_room(plan, store, PARAMETERS)
    assert room is not None
    before = room()
    state = state_bytes(config, PARAMETERS)  # which the next checkpoint is written from
    assert before == 10**9 - state - estimates_bytes(config, PARAMETERS) - optimizer_bytes(config, PARAMETERS)
    (tmp_path / "events.jsonl").write_bytes(bytes(5000))
    assert room() == before - 5000
    least = plan.needed - 10**9 + before
    one = expected_bytes(PARAMETERS)
    assert one * (plan.config.node.checkpoint_keep + 1) <= least, "what is planned has room in what is measured"


def around_in(folder: Path) -> NodeContext:
    identity = Identity(bytes(32))
    return NodeContext(
        identity=identity,
        transport=MemoryNetwork(random.Random(0)).attach(identity.peer_id),
        executor=InlineExecutor(0.0),
        emit=lambda event: None,
        rng=random.Random(0),
        checkpoints=CheckpointStore(folder / "checkpoint"),
        epoch_file=folder / "epoch",
    )


def test_the_checkpoints_of_a_node_with_a_budget_of_disk_are_held_to_it(tmp_path: Path) -> None:
    store = within_budget(config_of(budget={"disk": "100MB"}), around_in(tmp_path)).around.checkpoints
    store.save(make(1))
    with (tmp_path / "others").open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(OSError, match=r"budget\.disk leaves no room"):
        store.save(make(2))


@pytest.mark.parametrize("lacking", [0, 1], ids=["on-disk", "in-memory"])
def test_a_node_keeps_the_optimizers_state_where_its_plan_says(tmp_path: Path, lacking: int) -> None:
    whole = within_budget(config_of(budget={"disk": "90MB"}), around_in(tmp_path))
    numel = whole.learned[1].numel()
    smallest = whole.disk.needed - (whole.config.node.checkpoint_keep - 1) * expected_bytes(numel)
    budgeted = within_budget(config_of(budget={"disk": smallest - lacking}), around_in(tmp_path))
    assert budgeted.disk.state_in_memory == bool(lacking)
    kept = budgeted.around.checkpoints.keep_apart({"moment": torch.zeros(3)})["moment"]
    assert isinstance(kept, torch.Tensor) == bool(lacking)


def test_a_folder_whose_log_was_full_before_has_room_for_checkpoints_again(tmp_path: Path) -> None:
    """Without a bound of its own the log alone fills the budget, and no checkpoint is ever written again."""
    path = tmp_path / "events.jsonl"
    for file in (older(path), path):
        file.write_bytes(b'{"ts": 1, "event": "round"}\n' * 1_500_000)
    around = around_in(tmp_path)
    budgeted = within_budget(config_of(budget={"disk": "100MB"}), around)
    store = budgeted.around.checkpoints
    store.save(make(1))
    (tmp_path / "others").write_bytes(bytes(20_000_000))
    with pytest.raises(OSError, match=r"budget\.disk leaves no room"):
        store.save(make(2))
    with EventLog(path) as log:
        budgeted.hold(HeldProcess(os.getpid()), log)
    assert path.stat().st_size + older(path).stat().st_size <= 2 * budgeted.disk.event_bytes
    store.save(make(2))


# Cgroups, on folders that stand for the kernel's


class Kernel:
    """Makes the files of a new cgroup, as the kernel does, where the controllers are enabled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: dict[Path, tuple[str, ...]]) -> None:
        made, removed = Path.mkdir, Path.rmdir

        def mkdir(path: Path, *words: Any, **more: Any) -> None:
            made(path, *words, **more)
            if path.name.startswith(cgroups.PREFIX):
                for name in (*files.get(path.parent, ()), cgroups.PROCESSES):
                    (path / name).touch()

        def rmdir(path: Path) -> None:
            for file in path.iterdir():
                file.unlink()
            removed(path)

        monkeypatch.setattr(Path, "mkdir", mkdir)
        monkeypatch.setattr(Path, "rmdir", rmdir)


V1 = ("memory.limit_in_bytes",)
V2 = ("memory.max", "cpu.max")


def test_version_2_is_held_beside_the_own_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup that has processes enables no controllers below it."""
    home = tmp_path / "slice" / "scope"
    home.mkdir(parents=True)
    Kernel(monkeypatch, {home.parent: V2})
    limits = Limits(memory=100 * MIB, cpu=1.5)
    with HeldProcess(7, outside=10 * MIB) as process:
        process.enter(limits, [Hierarchy(home, 2, frozenset(cgroups.KINDS))])
        process.limit(limits)
        group = home.parent / "p2ptrain-7"
        assert process.holds == {"memory", "cpu"}
        assert (group / "memory.max").read_text() == str(90 * MIB)
        assert (group / "cpu.max").read_text() == "150000 100000"
        assert (group / "cgroup.procs").read_text() == "7"
        (group / "memory.peak").write_text(str(80 * MIB))
        assert process.memory_peak() == 90 * MIB
    assert not group.exists()
    assert (home / "cgroup.procs").read_text() == "7"


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, cpu = tmp_path / "memory", tmp_path / "cpu"
    for tree in (memory, cpu):
        tree.mkdir()
    Kernel(monkeypatch, {memory: V1, cpu: ("cpu.cfs_quota_us", "cpu.cfs_period_us")})
    limits = Limits(memory=100 * MIB, cpu=2)
    trees = [Hierarchy(memory, 1, frozenset(("memory",))), Hierarchy(cpu, 1, frozenset(("cpu",)))]
    with HeldProcess(7) as process:
        process.enter(limits, trees)
        process.limit(limits)
        assert process.holds == {"memory", "cpu"}
        assert (memory / "p2ptrain-7" / "memory.limit_in_bytes").read_text() == str(100 * MIB)
        assert (cpu / "p2ptrain-7" / "cpu.cfs_quota_us").read_text() == "200000"


@pytest.mark.parametrize(("file", "bound"), [("memory.max", "1000000000"), ("cpu.max", "50000 100000")])
def test_nobody_leaves_a_cgroup_that_is_bounded_for_one_beside_it(
    file: str, bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `MemoryMax=` of a service does, which holds whatever the node's own budget is."""
    home = tmp_path / "slice" / "service"
    home.mkdir(parents=True)
    Kernel(monkeypatch, {home.parent: V2})
    unbounded = {"memory.max": "max\n", "memory.high": "max\n", "cpu.max": "max 100000\n"}
    for files, held in ((unbounded, {"memory"}), ({**unbounded, file: bound}, frozenset())):
        for name, value in files.items():
            (home / name).write_text(value)
        with HeldProcess(7) as process:
            process.enter(Limits(memory=MIB), [Hierarchy(home, 2, frozenset(cgroups.KINDS))])
            process.limit(Limits(memory=MIB))
            assert process.holds == held


def test_version_1_is_not_left_for_a_cgroup_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "pods" / "own"
    home.mkdir(parents=True)
    Kernel(monkeypatch, {home.parent: V1})
    with HeldProcess(7) as process:
        process.enter(Limits(memory=MIB), [Hierarchy(home, 1, frozenset(("memory",)))])
        process.limit(Limits(memory=MIB))
        assert process.holds == frozenset()


def test_a_cgroup_of_an_earlier_process_of_the_same_number_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit would end the new process before that has a limit of its own. In a container all have the same."""
    Kernel(monkeypatch, {tmp_path: V1})
    old = tmp_path / f"p2ptrain-{os.getpid()}"
    old.mkdir()
    (old / V1[0]).write_text("1000")
    with HeldProcess(os.getpid()) as process:
        process.enter(Limits(memory=MIB), [Hierarchy(tmp_path, 1, frozenset(("memory",)))])
        assert (old / V1[0]).read_text() == ""


def test_a_cgroup_that_another_container_uses_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers that see one tree may have processes of one number."""
    Kernel(monkeypatch, {tmp_path: V1})
    theirs = tmp_path / "p2ptrain-7"
    theirs.mkdir()
    (theirs / V1[0]).write_text("1000")

    def busy(path: Path) -> None:
        raise OSError("Device or resource busy")

    monkeypatch.setattr(Path, "rmdir", busy)
    with HeldProcess(7) as process:
        process.enter(Limits(memory=MIB), [Hierarchy(tmp_path, 1, frozenset(("memory",)))])
        process.limit(Limits(memory=MIB))
        assert process.holds == frozenset()
    assert (theirs / V1[0]).read_text() == "1000"
    assert (theirs / "cgroup.procs").read_text() == ""


def test_where_no_cgroup_can_be_made_nothing_is_held_and_nothing_left(tmp_path: Path) -> None:
    """These folders are none of the kernel's: a new one has no files."""
    home = tmp_path / "slice" / "scope"
    home.mkdir(parents=True)
    with HeldProcess(7) as process:
        process.enter(Limits(memory=MIB), [Hierarchy(home, 2, frozenset(cgroups.KINDS))])
        process.limit(Limits(memory=MIB))
        assert process.holds == frozenset()
    assert [*home.iterdir()] == []
    assert [*home.parent.iterdir()] == [home]


def test_cgroups_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    gone, living, other = tmp_path / "p2ptrain-999999999", tmp_path / f"p2ptrain-{os.getpid()}", tmp_path / "p2ptrain-x"
    for group in (gone, living, other):
        group.mkdir()
    remove_stale(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted((living, other))


def test_the_own_cgroups_are_found_in_what_the_kernel_tells() -> None:
    cgroup = "4:memory:/job/a\n1:cpu,cpuacct:/job/a\n0::/user.slice/a.scope\n"
    mounts = (
        "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 24 0:27 /job /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 24 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 24 0:29 / /proc rw - proc proc rw\n"
    )
    found = {str(tree.home): (tree.version, set(tree.controllers)) for tree in hierarchies_in(cgroup, mounts)}
    assert found == {
        "/sys/fs/cgroup/memory/a": (1, {"memory"}),
        "/sys/fs/cgroup/cpu/job/a": (1, {"cpu", "cpuacct"}),
        "/sys/fs/cgroup/unified/user.slice/a.scope": (2, {"memory", "cpu"}),
    }


# Watching


def test_near_the_budget_half_as_many_examples_go_through_the_model() -> None:
    trainer = Trainer(Digits(), TrainConfig(batch_size=8, device="cpu"), Shard())
    used = 0.5
    watch = BudgetWatch(1000 * MIB, lambda: round(used * 1000 * MIB), trainer)
    watch.look(0.0)
    assert trainer.micro_batch is None
    used = 0.96
    sizes = []
    for look in range(6):
        watch.look(look * SETTLE_S)
        watch.look(look * SETTLE_S + SETTLE_S / 2)  # steps of the former size have not ended
        sizes.append(trainer.micro_batch)
    assert sizes == [4, 2, 1, 1, 1, 1]


class Compares(Digits):
    """Its loss compares the examples of a batch."""

    whole_batches = True


class Counted(torch.nn.Linear):
    """A layer with a buffer that each pass changes."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(input)


class Normalized(Digits):
    """Its model cannot be trained on one example."""

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(Counted(), torch.nn.BatchNorm1d(10, track_running_stats=False))


@pytest.mark.parametrize("task", [Compares(), Normalized()])
def test_a_batch_that_must_not_be_cut_is_not(task: Digits) -> None:
    """Its pieces have another gradient."""
    trainer = Trainer(task, TrainConfig(batch_size=8, device="cpu"), Shard())
    least = trainer.least_at_a_time()
    assert least == 8
    on_disk = config_of(
        budget={"memory": "1TB"}, node={"estimates_on": "disk", "optimizer_on": "disk"}, train={"batch_size": 8}
    )
    tight = config_of(budget={"memory": need(on_disk) - 1}, train={"batch_size": 8})
    assert plan_memory(tight, need).config.node.micro_batch == 4
    with pytest.raises(UsageError, match="too little"):
        plan_memory(tight, need, least_examples=least)
    BudgetWatch(1000 * MIB, lambda: 999 * MIB, trainer, least).look(0.0)
    assert trainer.micro_batch is None


def test_a_small_batch_of_a_task_that_compares_its_examples_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Digits, "whole_batches", True, raising=False)
    with pytest.raises(UsageError, match=r"node\.micro_batch is set"):
        own_trainer(config_of(node={"micro_batch": 4}), "peer")


def test_a_forecast_leaves_a_twentieth_for_what_the_kernel_keeps() -> None:
    """A node with 379 MiB that held 368 MiB was killed without (decision 0109)."""
    config = config_of()
    need_of_node = needs_of(Trainer(Digits(), config.train, Shard()), 1, lambda: 3000 * MIB)
    trained = Trainer(Digits(), config.train, Shard()).numel
    program = 3000 * MIB - (3 + 2) * 4 * trained  # parameters, gradient and initial model, and adamw's moments
    assert need_of_node(config) > 1.05 * memory_forecast(trained, "cpu", config, kept=0, program=program).total
    assert need_of_node(config) < 1.05 * memory_forecast(trained, "cpu", config, kept=MIB, program=program).total + 20e6


def test_a_full_disk_at_the_start_is_told_where_memory_has_no_room_either() -> None:
    def full() -> NamelessFile:
        raise OSError(errno.ENOSPC, "No space left on device")

    told: list[object] = []
    journal = Journal(told.append, clock=lambda: 0.0)
    trainer = Trainer(Digits(), TrainConfig(device="cpu"), Shard())
    on_disk = {"optimizer_on": "disk"}
    assembly._file_optimizer(trainer, config_of(node=on_disk), full, journal)
    assert "held in memory" in str(told[0])
    with pytest.raises(UsageError, match="No space left on device"):
        assembly._file_optimizer(trainer, config_of(node=on_disk, budget={"memory": "1GB"}), full, journal)


def test_trying_what_is_kept_changes_nothing_of_the_model() -> None:
    tried, other = (Trainer(Normalized(), TrainConfig(batch_size=8, device="cpu"), Shard()) for _ in range(2))
    assert tried.least_at_a_time() == 8
    assert tried.kept_by(8) > 0
    for trainer in (tried, other):
        trainer.step()
    states = zip(tried.state_dict().items(), other.state_dict().items(), strict=True)
    assert all(one[0] == two[0] and torch.equal(one[1], two[1]) for one, two in states)


def test_held_memory_is_what_cannot_be_taken_back() -> None:
    before = held_bytes()
    block = bytearray(os.urandom(1)) * (64 * MIB)
    assert held_bytes() - before > 0.9 * len(block)


def test_there_are_as_many_threads_as_whole_cores_of_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    for cpu, threads in ((0.5, 1), (2.5, 2), (64, 4)):
        assert budgeting.with_threads(config_of(budget={"cpu": cpu})).train.threads == threads
    given_number = config_of(budget={"cpu": 2}, train={"threads": 3})
    assert budgeting.with_threads(given_number) == given_number


# What is seen


def test_a_meter_reads_what_is_taken_of_each(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(bytes(1000))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    seconds, cores = iter((0.0, 10.0, 20.0)), iter((0.0, 5.0, 30.0))
    bounds = from_raw(flags(memory="6GiB", gpu_memory="4GiB", disk="20GiB", cpu=2)).budget
    meter = BudgetMeter(bounds, tmp_path, cpu_s=lambda: next(cores), gpu=lambda: 7, clock=lambda: next(seconds))
    assert meter.budget() == {"memory": 6 << 30, "gpu_memory": 4 << 30, "disk": 20 << 30, "cpu": 2}
    first, second = meter.used(), meter.used()
    assert (first["cpu"], second["cpu"]) == (0.5, 2.5)
    assert first["gpu_memory"] == 7
    assert 1000 <= first["disk"] < 5000
    assert first["memory"] > 10 * MIB
    meter = BudgetMeter(from_raw(flags(cpu=2)).budget, tmp_path, cpu_s=lambda: 0.0, gpu=lambda: 7, clock=lambda: 0.0)
    assert meter.used() == {"cpu": 0.0}


def test_a_node_tells_prometheus_its_budget_and_what_it_takes() -> None:
    metrics = Metrics()
    metrics.live.watch(lambda: Readings(budget={"memory": 6.0, "cpu": 2.0}, budget_used={"memory": 4.0, "cpu": 1.0}))
    served = metrics.exposition().decode().splitlines()
    assert 'p2ptrain_budget{resource="memory"} 6.0' in served
    assert 'p2ptrain_budget_used{resource="cpu"} 1.0' in served


def test_top_shows_what_counts_of_the_budget() -> None:
    told = NodeProgress("node", rss_bytes=400 * MIB)
    assert _memory(told) == "419 MB"
    told.observe(BudgetPlanned(message="", needed_bytes=1, memory_bytes=500 * MIB, held=["memory"]))
    assert _memory(told) == "419 MB"  # no round has ended
    told.held_bytes = 300 * MIB
    assert _memory(told) == "315 MB of 524 MB"


def test_doctor_says_what_a_node_would_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "machine_memory", lambda: 200 * 10**9)
    config = config_of(budget={"memory": "100GB", "disk": "1GB"})
    trainer = Trainer(Digits(), config.train, Shard())
    model = Model(
        parameters=trainer.numel, device="cpu", run=RunInfo(run_id=RunId(b""), genesis=Digest(b"")), trainer=trainer
    )
    subject = Subject(network=config.network, node=config.node, learning=config, run_dir=Path())
    found = budget(subject, model)
    assert found is not None
    assert (found.level, found.seen.partition(",")[0]) == ("ok", "memory 100 GB")
    beyond = budget(replace(subject, learning=config_of(budget={"memory": "1TB"})), model)
    assert beyond is not None
    assert beyond.level == "warning"
    assert "memory 200 GB" in beyond.seen
    assert "200 GB that this machine has" in beyond.fix
    little = replace(subject, learning=config_of(budget={"memory": "1MB"}))
    refused = budget(little, model)
    assert refused is not None
    assert refused.level == "problem"
    assert "at least" in refused.seen
    assert budget(replace(subject, learning=config_of()), model) is None


def test_a_budget_is_planned_for_local_parameters_too() -> None:
    """They are trained as the others, and stand in every checkpoint."""
    trainers = [
        own_trainer(config_of(task={"name": "digits"}, train={"local": local}), "peer") for local in ([], ["0.*"])
    ]
    whole, parted = (needs_of(it, 8, used=lambda: 10**8)(config_of()) for it in trainers if isinstance(it, Trainer))
    assert parted == pytest.approx(whole, rel=1e-3)
