"""`torchrun ... -m p2ptrain node`: real ranks that are one node of a swarm, killed, stopped and started again."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
import torch
from processes_harness import PATIENCE_S, Event, Program, node, ran
from site_harness import LOOPBACK, MACHINE, PICO, end, pid_of, site

from node.training.checkpoint import CheckpointStore
from p2ptrain.tasks.hf import open_base

pytestmark = [pytest.mark.thorough, pytest.mark.paired, pytest.mark.slow]

TINY = Path(__file__).parents[1] / "data" / "tiny-llama.json"
SAME = (*MACHINE, "--set", "node.shard_index=0", "--set", "train.warmup_steps=5", "--set", "node.overlap=false")
"""What equal steps want. With overlap a process takes as many more while it closes a round as it has time for."""
ALONE = (*PICO, *SAME, "--inner-steps", "5")
NANO = ("--set", "task.size=nano", "--set", "task.context=60")
QUICK = ("--set", "site.timeout_s=5", "--set", "node.checkpoint_every=2")
RECOMPUTED = ("--set", "site.activation_checkpointing=true")
MATRICES = ("--set", "site.tensor=2")
STAGES = ("--set", "site.pipeline=2")
INTERLEAVED = (*STAGES, "--set", "site.pipeline_schedule=interleaved")
ONE_RANK = ("--set", "site.pipeline=1")
LONG = (*PICO, "--inner-steps", "10", "--rounds", "5000")
AGAIN = ("--max-restarts", "3")


def kept(run: Path) -> dict[str, torch.Tensor]:
    found = CheckpointStore(run / "node" / "checkpoint").newest()
    assert found is not None
    return dict(found.tensors)


def far(one: Path, other: Path) -> float:
    """The largest difference of two runs' newest checkpoints."""
    states = kept(one), kept(other)
    assert states[0].keys() == states[1].keys()
    return max(float((states[0][name].double() - states[1][name].double()).abs().max()) for name in states[0])


def done(program: Program) -> Event:
    """What a node that has trained to its end tells last."""
    with program:
        assert program.end() == 0, program.stderr[-3000:]
        (finished,) = program.heard("finished")
    return finished


@pytest.mark.parametrize(
    ("size", "last"),
    [((), RECOMPUTED), pytest.param(NANO, ("--set", "site.tensor=3"), marks=pytest.mark.soak)],
)
def test_a_site_trains_what_one_process_trains_and_goes_on_by_other_numbers(
    tmp_path: Path, size: tuple[str, ...], last: tuple[str, ...]
) -> None:
    words = (*ALONE, *size)
    many, one = tmp_path / "many", tmp_path / "one"
    for rounds, ranks, more in ((2, 2, words), (3, 4, ()), (4, 1, ()), (5, 3, last)):
        ours = site(many, ranks, *more, "--rounds", rounds) if ranks > 1 else node(many, *more, "--rounds", rounds)
        theirs = node(one, *(words if rounds == 2 else ()), "--rounds", rounds)
        told = done(ours)["summary"], done(theirs)["summary"]
        assert told[0]["eval_loss_last"] == pytest.approx(told[1]["eval_loss_last"], abs=1e-5)
        assert far(many / "run", one / "run") < 1e-5
    exported = ran(tmp_path, "export", many / "run", "--out", tmp_path / "model.safetensors")
    assert exported.code == 0, exported.err


def test_matrices_and_shards_in_two_dimensions_are_what_one_process_trains(tmp_path: Path) -> None:
    """Without clipping: a trainer of one process sums the squares of three million gradients in fp32, so that the norm
    is wrong from its fifth digit on. A site's is summed in fp64."""
    sgd = ("--set", "train.optimizer=sgd", "--set", "train.learning_rate=0.02", "--set", "train.clip_norm=0")
    words = (*ALONE, *sgd, "--set", "task.size=micro", "--rounds", 2)
    done(site(tmp_path / "many", 4, *words, "--set", "site.tensor=2"))
    done(node(tmp_path / "one", *words))
    assert far(tmp_path / "many" / "run", tmp_path / "one" / "run") < 1e-5


@pytest.mark.parametrize(("ranks", "stages"), [(2, STAGES), pytest.param(4, INTERLEAVED, marks=pytest.mark.soak)])
def test_stages_train_what_one_process_trains_which_goes_on_from_them(
    tmp_path: Path, ranks: int, stages: tuple[str, ...]
) -> None:
    words = (*ALONE, *NANO)
    many, one = tmp_path / "many", tmp_path / "one"
    for rounds in (2, 3):
        more = words if rounds == 2 else ()
        ours = site(many, ranks, *more, *stages, "--rounds", 2) if more else node(many, *ONE_RANK, "--rounds", 3)
        theirs = node(one, *more, "--rounds", rounds)
        told = done(ours)["summary"], done(theirs)["summary"]
        assert told[0]["eval_loss_last"] == pytest.approx(told[1]["eval_loss_last"], abs=1e-5)
        assert far(many / "run", one / "run") < 1e-5
    exported = ran(tmp_path, "export", many / "run", "--out", tmp_path / "model.safetensors")
    assert exported.code == 0, exported.err


def test_stages_and_two_processes_of_their_own_are_one_swarm(tmp_path: Path) -> None:
    words = (*PICO, *NANO, "--inner-steps", "5", "--rounds", "8")
    with node(tmp_path / "one", *words, "--set", "node.wait_for=2") as one:
        peer = ("--peer", one.hear("started")["addresses"][0])
        with (
            node(tmp_path / "two", *words, *peer, "--set", "node.wait_for=2") as two,
            site(tmp_path / "many", 2, *words, *STAGES, *peer, "--set", "node.wait_for=2") as many,
        ):
            programs = (one, two, many)
            for program in programs:
                assert program.end() == 0, program.stderr[-3000:]
            assert len({program.heard("started")[0]["genesis"] for program in programs}) == 1
            assert sum(each["members"] == 3 for each in many.heard("round")) > 2
            for program in programs:
                assert not program.heard("banned")
                rounds = program.heard("round")
                assert rounds[-1]["train_loss"] < rounds[0]["train_loss"]
    with node(tmp_path / "many", *ONE_RANK, "--rounds", 9) as alone:
        assert alone.hear("resumed")["round"] == 8


def test_a_site_and_a_process_of_its_own_are_one_swarm(tmp_path: Path) -> None:
    words = (*PICO, "--inner-steps", "10", "--rounds", "30")
    with node(tmp_path / "one", *words, "--set", "node.wait_for=1") as one:
        address = one.hear("started")["addresses"][0]
        with site(tmp_path / "many", 2, *words, "--peer", address) as many:
            started = many.hear("started")
            assert many.end() == 0, many.stderr[-3000:]
            assert len(many.heard("started")) == 1, "rank 0 alone is a node"
            rounds = many.heard("round")
            assert sum(each["members"] == 2 for each in rounds) > 10
            assert many.heard("finished")[0]["summary"]["rounds"] == 30
        assert one.end() == 0
        assert not one.heard("banned")
        assert started["genesis"] == one.heard("started")[0]["genesis"]
        assert one.heard("round")[-1]["train_loss"] < one.heard("round")[0]["train_loss"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_the_model_and_it_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    with site(tmp_path, 2, *LONG) as program:
        program.hear_round(2)
        assert end(program, number) != 0
        (written,) = program.heard("checkpoint")
        assert program.heard("interrupted")
    with site(tmp_path, 2, "--rounds", written["round"] + 1) as program:
        assert program.hear("resumed")["round"] == written["round"]
        assert program.end() == 0


def test_ranks_whose_torchrun_was_killed_save_the_model_and_end(tmp_path: Path) -> None:
    with site(tmp_path, 2, *LONG) as program:
        program.hear_round(2)
        ranks = [pid_of(rank, tmp_path) for rank in range(2)]
        os.kill(program.pid, signal.SIGKILL)
        program.hear("interrupted")
        assert program.heard("checkpoint")
        deadline = time.monotonic() + PATIENCE_S
        while any(map(runs, ranks)):
            assert time.monotonic() < deadline, "a rank is left"
            time.sleep(0.2)


def runs(pid: int) -> bool:
    """Whether a process runs: one that has ended may be waited for by nobody."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("ranks", "stages"),
    [(2, ()), pytest.param(4, (), marks=pytest.mark.soak), pytest.param(2, STAGES, marks=pytest.mark.soak)],
)
def test_a_site_comes_back_by_itself_and_the_others_go_on(ranks: int, stages: tuple[str, ...], tmp_path: Path) -> None:
    with node(tmp_path / "one", *LONG, "--set", "node.wait_for=1") as one:
        address = one.hear("started")["addresses"][0]
        with site(tmp_path / "many", ranks, *LONG, *QUICK, *stages, "--peer", address, torchrun=AGAIN) as many:
            many.until(lambda: [each for each in many.heard("round") if each["members"] == 2], 1, "a pair", 60)
            hung = 0 if ranks == 2 else 1
            for nth, (rank, number) in enumerate(
                [(ranks - 1, signal.SIGKILL), (0, signal.SIGKILL), (hung, signal.SIGSTOP)], start=1
            ):
                seen = many.heard("checkpoint")[-1]["round"] if many.heard("checkpoint") else 0
                many.hear("checkpoint", count=len(many.heard("checkpoint")) + 1)
                before = one.heard("round")[-1]["round"]
                os.kill(pid_of(rank, tmp_path / "many"), number)
                resumed = many.hear("resumed", count=nth)
                assert resumed["round"] > seen
                one.hear_round(before + 3)
                again = len(many.heard("round"))
                many.until(lambda again=again: many.heard("round")[again:], 1, "a round", 60)
            assert "a rank of this site has not answered for site.timeout_s" in many.stderr
            assert not hung or "has not answered" in many.heard("failed")[-1]["error"]
            again = len(many.heard("round"))
            many.until(lambda: [each for each in many.heard("round")[again:] if each["members"] == 2], 1, "a pair", 60)
            assert not one.heard("banned")


def test_a_model_that_is_slow_to_build_is_built_in_each_rank_at_its_own_pace(tmp_path: Path) -> None:
    words = ("--task", "slow_to_build:create", *SAME, "--inner-steps", "2", "--rounds", "1")
    assert done(site(tmp_path, 2, *words, "--set", "site.timeout_s=2"))["summary"]["rounds"] == 1


@pytest.mark.parametrize("lora", [(), pytest.param(("--set", "task.lora=2"), marks=pytest.mark.soak)])
def test_a_model_of_hugging_face_is_shared_out_and_exported(tmp_path: Path, lora: tuple[str, ...]) -> None:
    pytest.importorskip("peft" if lora else "transformers")
    data, base = tmp_path / "data.jsonl", tmp_path / "base"
    data.write_text("\n".join(json.dumps({"text": f"{n} and {n * n} are {n + n * n}"}) for n in range(400)))
    torch.manual_seed(3)
    open_base(str(TINY), "AutoModelForCausalLM").build().save_pretrained(base)  # type: ignore[operator]
    task = ("--task", "hf-lm", "--set", f"task.model={base if lora else TINY}", "--set", "task.length=16")
    trained = ("--inner-steps", 4, "--rounds", 2, "--set", "train.batch_size=4", "--set", "train.eval_examples=8")
    words = (*task, *lora, *trained, "--data", data, *SAME)
    ours, theirs = done(site(tmp_path / "many", 2, *words, *RECOMPUTED)), done(node(tmp_path / "one", *words))
    assert ours["summary"]["eval_loss_last"] == pytest.approx(theirs["summary"]["eval_loss_last"], abs=1e-5)
    assert far(tmp_path / "many" / "run", tmp_path / "one" / "run") < 1e-5
    exported = ran(tmp_path, "export", tmp_path / "many" / "run", "--to", "hf", "--out", tmp_path / "out")
    assert exported.code == 0, exported.err
    assert (tmp_path / "out" / ("adapter_config.json" if lora else "config.json")).is_file()


@pytest.mark.soak  # three minutes, nearly all of them torchrun's own waiting
def test_a_site_goes_on_with_the_machines_that_are_left_and_takes_others_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two torchruns as on two machines, with one rank each. The first one holds torchrun's store."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # else torchrun takes nobody in
    port = free_port()
    keeps = "last_call_timeout=15,keep_alive_interval=1,keep_alive_max_attempt=3"
    meeting = ("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", keeps, "--local-addr", "127.0.0.1")
    launcher = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "site", *meeting, *AGAIN)

    def machine() -> Program:
        return site(tmp_path, 1, *LONG, *QUICK, torchrun=launcher)

    with machine() as first:
        until_open(port)
        with machine() as second:
            first.until(lambda: [*first.heard("checkpoint"), *second.heard("checkpoint")], 1, "a checkpoint", 90)
            (led, other) = (first, second) if first.heard("started") else (second, first)
            assert not other.heard("started")
            gone = pid_of(1 if led is first else 0, tmp_path)
            os.kill(second.pid, signal.SIGKILL)
            os.kill(gone, signal.SIGKILL)
        resumed = first.hear("resumed")
        assert resumed["round"] > 0
        first.hear_round(resumed["round"] + 1)
        with machine() as third:
            first.until(lambda: [*first.heard("resumed")[1:], *third.heard("resumed")], 1, "a pair", PATIENCE_S)
            assert first.heard("interrupted"), "with its model saved"
            assert pid_of(0, tmp_path) != pid_of(1, tmp_path)


def until_open(port: int) -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with socket.socket() as caller:
            if caller.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("torchrun does not listen")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--set", "train.optimizer=muon"), "a site has no train.optimizer=muon, which wants whole matrices"),
        (("--set", "site.shard=3"), "2 ranks cannot be shared out by site.shard=3: start a multiple of 3"),
        (("--set", "train.drift=scaffold", "--set", "sync.outer=average"), "a site has no train.drift=scaffold"),
    ],
)
def test_settings_that_a_site_has_not_are_one_line(words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    with site(tmp_path, 2, *SAME, *words) as program:
        assert program.end() != 0
        assert f"error: {line}" in program.stderr
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((*PICO, *MATRICES), "site.tensor=2 does not divide the model's heads (1) and its positions (64)"),
        (
            ("--task", "digits", *MATRICES),
            "site.tensor=2: the task digits does not say how its matrices are shared out; byte-lm does",
        ),
        ((*PICO, *INTERLEAVED), "4 stages of a pipeline want as many blocks, and the model has 2"),
    ],
)
def test_a_task_that_cannot_be_shared_out_is_one_line(words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    with site(tmp_path, 2, *SAME, *words) as program:
        assert program.end() != 0
        assert f"error: {line}" in program.stderr


def test_a_site_needs_ranks(tmp_path: Path) -> None:
    alone = ran(tmp_path, "node", *LOOPBACK, "--set", "site.shard=2")
    assert alone.code == 2
    assert "site.shard=2 wants several ranks; start them by `torchrun" in alone.err
