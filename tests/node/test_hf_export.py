"""A swarm of a model of transformers, and what other programs open of it: `export --to hf` and `--to onnx`."""

import errno
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from run_folders import digits, node_folder
from sim_swarm import swarm
from swarm_harness import founded, joined, mistake, said

from node.cli.options import flags
from node.config.schema import from_raw, load
from node.roles.assembly import run_info
from node.swarm.accept_invite import membership, read_invite
from node.swarm.base_model import check_base
from node.system.errors import UsageError
from node.training import replaced_folder
from node.training.evaluation import adapter_gap, load_models, mean_model
from p2ptrain import tasks
from p2ptrain.tasks.base import identity_of
from p2ptrain.tasks.hf import BaseModel, LoraOptions, adapter_size, language_model, open_base
from p2ptrain.training import Trainer

TINY = Path(__file__).parents[1] / "data" / "tiny-llama.json"
MEMBERS = ("node-0", "node-1", "node-2")
ROUNDS = 3
Q2_BITS = 2
SWARM_SETTINGS = {"train": {"rounds": ROUNDS, "inner_steps": 2, "eval_examples": 8, "batch_size": 2}}


def weights(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    open_base(str(TINY), "AutoModelForCausalLM").build().save_pretrained(folder)  # type: ignore[operator]
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


class Run:
    """What three nodes leave, and the bytes of their updates."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder, self.published = folder / "run", []
        self.folder.mkdir()
        (folder / "data.jsonl").write_text(
            "\n".join(json.dumps({"text": f"{n} and {n * n} are {n + n * n}"}) for n in range(400))
        )
        weights(folder / "base", 3)
        self.task = {"name": "hf-lm", "length": 16, "data": str(folder / "data.jsonl"), "model": str(TINY), **options}
        if "lora" in options:
            self.task["model"] = str(folder / "base")
        trio.run(self._live, clock=trio.testing.MockClock(autojump_threshold=0))
        for name in MEMBERS:
            (self.folder / name / "events.jsonl").touch()

    async def _live(self) -> None:
        async with swarm(self.folder) as members:
            for name in MEMBERS:
                await members.start(
                    name,
                    wait_for=len(members.members),
                    task=self.task,
                    node={"checkpoint_every": 1},
                    **SWARM_SETTINGS,
                )
            await members.finished()
            for member in members.members.values():
                self.published.append(
                    [
                        each["payload_bytes"]
                        for each in member.events
                        if each["event"] == "round" and each["payload_bytes"]
                    ]
                )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    made: dict[str, Run] = {}

    def run_of(**options: Any) -> Run:
        key = json.dumps(options, sort_keys=True)
        if key not in made:
            made[key] = Run(tmp_path_factory.mktemp("hf"), options)
        return made[key]

    return run_of


def logits_of(model: Any, run: Run) -> torch.Tensor:
    (batch,) = tasks.get("hf-lm", **{k: v for k, v in run.task.items() if k != "name"}).eval_batches(4)
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=batch[0], use_cache=False).logits
    return found


def swarms_model(run: Run) -> Any:
    models = load_models(run.folder)
    assert len(models) == 3
    return models[0].trainer.model_with(mean_model(models))


@pytest.mark.slow
def test_from_pretrained_gives_the_swarms_model_to_the_last_bit(
    runs: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, out = runs(), tmp_path / "model"
    code, told, err = said(capsys, "export", run.folder, "--to", "hf", "--out", out)
    assert code == 0, err
    assert "the mean of node-0, node-1, node-2; 20 tensors" in told
    assert f"transformers.LlamaForCausalLM.from_pretrained('{out}')" in told
    opened = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(logits_of(opened, run), logits_of(swarms_model(run), run))
    initial = open_base(str(TINY), "AutoModelForCausalLM").build()
    assert not torch.equal(logits_of(opened, run), logits_of(initial, run))
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer("ab").input_ids == [100, 101, 1]
    assert "<|im_start|>" in tokenizer.chat_template
    assert "is there already" in mistake(capsys, "export", run.folder, "--to", "hf", "--out", out)
    assert said(capsys, "export", run.folder, "--to", "hf", "--out", out, "--force")[0] == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").write_text("dear")
    wrong = mistake(capsys, "export", run.folder, "--to", "hf", "--out", tmp_path / "mine", "--force")
    assert "is no folder with a model" in wrong


@pytest.mark.slow
def test_an_adapter_is_opened_alone_and_merged(
    runs: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    from p2ptrain.tasks.hf.base_model import peft_quiet

    run = runs(lora=2)
    assert said(capsys, "export", run.folder, "--to", "hf", "--out", tmp_path / "adapter")[0] == 0
    assert said(capsys, "export", run.folder, "--to", "hf", "--merged", "--out", tmp_path / "merged")[0] == 0
    model = swarms_model(run)
    wanted = logits_of(model, run)
    with peft_quiet():
        adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert torch.equal(logits_of(adapted, run), wanted)
    sizes = [
        sum(each.stat().st_size for each in (tmp_path / name).glob("*.safetensors")) for name in ("adapter", "merged")
    ]
    assert sizes[0] < sizes[1] / 2
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    # Adding the product to the weights first rounds otherwise than adding two outputs: alike but for that, and the
    # folder holds what merging gives to the last bit.
    assert torch.allclose(logits_of(merged, run), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
    assert torch.equal(logits_of(merged, run), logits_of(model.merge_and_unload(), run))


@pytest.mark.slow
def test_what_travels_is_the_adapter(runs: Callable[..., Run]) -> None:
    """Bytes of an update: the adapter's parameters times the codec's bits, within 2%, in every round of every node."""
    run = runs(lora=2)
    base = open_base(str(TINY), "AutoModelForCausalLM")
    wanted = adapter_size(base, LoraOptions(rank=2)) * Q2_BITS / 8
    assert [len(each) for each in run.published] == [ROUNDS] * 3
    for sent in run.published:
        assert sum(sent) == pytest.approx(ROUNDS * wanted, rel=0.02)


@pytest.mark.slow
def test_the_product_gap_is_told_where_there_are_several_models(
    runs: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs(lora=2)
    gap = adapter_gap(load_models(run.folder))
    assert gap is not None
    assert 0 < gap.gap < gap.size
    _, told, _ = said(capsys, "evaluate", run.folder, "--json")
    assert json.loads(told)["product_gap"] == gap.gap
    _, told, _ = said(capsys, "evaluate", run.folder)
    assert f"product gap: {gap.words()}" in told
    assert "product gap" not in said(capsys, "evaluate", run.folder / "node-0")[1]


def test_a_task_of_another_kind_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node_folder(tmp_path / "run" / "node-0", digits("train.device=cpu"))
    wrong = mistake(capsys, "export", tmp_path / "run", "--to", "hf", "--out", tmp_path / "model")
    assert "the model of digits is none of transformers'" in wrong
    assert not (tmp_path / "model").exists()
    wrong = mistake(capsys, "export", tmp_path / "run", "--to", "onnx", "--out", tmp_path / "model.pt")
    assert "would be no onnx file" in wrong
    assert "--merged is for --to hf" in mistake(capsys, "export", tmp_path / "run", "--merged")


def digits_run(tmp_path: Path, runs: Callable[..., Run]) -> Path:
    node_folder(tmp_path / "node-0", digits("train.device=cpu"))
    return tmp_path


def bytes_run(tmp_path: Path, runs: Callable[..., Run]) -> Path:
    (tmp_path / "text.txt").write_text("the quick brown fox\n" * 1000)
    options = ["task.name=byte-lm", "task.size=pico", f"task.data={tmp_path / 'text.txt'}", "train.device=cpu"]
    node_folder(tmp_path / "node-0", load([], options))
    return tmp_path


def vision_run(tmp_path: Path, runs: Callable[..., Run]) -> Path:
    node_folder(tmp_path / "node-0", load([], ["task.name=hf-vision", "train.device=cpu"]))
    return tmp_path


def adapter_run(tmp_path: Path, runs: Callable[..., Run]) -> Path:
    return runs(lora=2).folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    "made",
    [
        adapter_run,
        digits_run,
        pytest.param(bytes_run, marks=pytest.mark.thorough),
        pytest.param(vision_run, marks=pytest.mark.thorough),
    ],
)
def test_onnxruntime_opens_every_kind_of_model(
    made: Callable[..., Path], runs: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    run, out = made(tmp_path, runs), tmp_path / "model.onnx"
    code, told, err = said(capsys, "export", run, "--to", "onnx", "--out", out, "--json")
    assert code == 0, err
    # The command has run the graph on fewer and shorter rows than it was made from.
    assert json.loads(told)["difference"] < 1e-4
    assert onnxruntime.InferenceSession(out).get_outputs()[0].name == "logits"


@pytest.mark.thorough
def test_a_graph_made_of_one_long_row_takes_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    monkeypatch.setattr(language_model, "EVAL_TOKENS", 32)  # a row in a batch, as of those above 2048 tokens
    (tmp_path / "text.txt").write_text("the quick brown fox\n" * 400)
    options = ["task.name=hf-lm", f"task.data={tmp_path / 'text.txt'}", "task.length=32", "train.device=cpu"]
    node_folder(tmp_path / "node-0", load([], options))
    out = tmp_path / "model.onnx"
    code, _, err = said(capsys, "export", tmp_path / "node-0", "--to", "onnx", "--out", out)
    assert code == 0, err
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    rows = torch.randint(3, 250, (3, 20), generator=torch.Generator().manual_seed(0))
    together = session.run(["logits"], {"input_ids": rows.numpy()})[0]
    alone = [session.run(["logits"], {"input_ids": row[None].numpy()})[0][0] for row in rows]
    assert torch.allclose(torch.tensor(together), torch.stack([*map(torch.tensor, alone)]), atol=1e-4)


def test_members_with_another_base_model_do_not_get_in(tmp_path: Path) -> None:
    base, same, other = (weights(tmp_path / name, seed) for name, seed in (("base", 1), ("same", 1), ("other", 2)))
    (tmp_path / "data.txt").write_text("some words\n" * 1000)
    raw = {
        "task": {"name": "hf-lm", "model": str(base), "lora": 2, "length": 16, "data": str(tmp_path / "data.txt")},
        "train": {"rounds": 3},
    }
    made = founded(tmp_path / "lab", raw)
    settings = made.chain.newest.terms.settings
    assert len(settings["base"]["digest"]) == 64  # type: ignore[index,arg-type]
    assert settings["base"]["memory_bytes"] > 400_000_000  # type: ignore[index]
    assert str(base) not in repr(settings)
    own = {
        "task": {"model": str(same), "data": str(tmp_path / "data.txt"), "dtype": "bf16"},
        "train": {"device": "cpu"},
    }
    member = joined(tmp_path / "a" / "node", made.line, own)
    again = membership(tmp_path / "a" / "node", {}, None)
    assert again is not None
    assert again.raw["task"]["model"] == str(same)
    ids = set()
    for each in (member.raw, {**raw, "train": {"rounds": 3, "device": "cpu"}}):
        config = from_raw({key: value for key, value in each.items() if key in ("task", "train", "sync")})
        task = tasks.get(config.task.name, **config.task.options)
        trainer = Trainer(task, config.train, tasks.Shard())
        ids.add(run_info(config, trainer.fingerprint, trainer.vector(), identity_of(task, trainer.model)))
    assert len(ids) == 1
    for given, what in (
        ({"task": {"model": str(other)}}, "is not the swarm's base model"),
        ({"task": {"model": str(TINY)}}, "is not the swarm's base model"),
        ({}, "say where it is: --model FOLDER"),
        ({"task": {"model": str(same), "lora": 4}}, "task.lora=4 contradicts the swarm"),
    ):
        with pytest.raises(UsageError) as told:
            membership(tmp_path / "b" / "node", given, read_invite(made.line))
        assert what in str(told.value) + str(told.value.hint)


def test_a_machine_with_less_memory_than_the_manifest_names_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = weights(tmp_path / "base", 1)
    (tmp_path / "data.txt").write_text("some words\n" * 1000)
    raw = {"task": {"name": "hf-lm", "model": str(base), "lora": 2, "data": str(tmp_path / "data.txt")}}
    monkeypatch.setattr(BaseModel, "frozen_bytes", lambda *_, **__: 4 * 10**13)
    made = founded(tmp_path / "lab", raw)
    with pytest.raises(UsageError, match=r"needs 40\.0 TB of memory, and this machine has"):
        membership(tmp_path / "b" / "node", {"task": {"model": str(base)}}, read_invite(made.line))


@pytest.mark.slow
def test_the_base_model_is_never_replaced_by_what_is_trained_on_it(
    runs: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs(lora=2)
    base = Path(run.task["model"])
    before = sorted((path.name, path.stat().st_size) for path in base.iterdir())
    for out in (base, base / ".." / base.name):
        wrong = mistake(capsys, "export", run.folder, "--to", "hf", "--out", out, "--force")
        assert "the run's base model lies in" in wrong
    assert sorted((path.name, path.stat().st_size) for path in base.iterdir()) == before


@pytest.mark.slow
def test_a_disk_that_is_full_is_said_in_a_line_and_nothing_is_left(
    runs: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit of the system on files' sizes fails as a full disk does: in safetensors' own code."""
    run, before = runs(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    try:
        code, _, err = said(capsys, "export", run.folder, "--to", "hf", "--out", tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code != 0
    assert "free some disk space" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("digest", ["\x1b[2J" + "a" * 60, "A" * 64, "", 5, True])
def test_a_manifest_that_names_no_digest_is_not_joined_nor_printed(digest: Any) -> None:
    with pytest.raises(UsageError, match="no digest") as told:
        check_base({"base": {"digest": digest, "memory_bytes": 1}}, {"task": {"model": "here"}})
    assert str(told.value).isprintable()


@pytest.mark.parametrize("raw", [{"task": "x"}, {"node": 3}])
def test_a_section_that_is_none_is_left_to_the_configuration(raw: Any) -> None:
    with pytest.raises(UsageError, match="say where it is"):
        check_base({"base": {"digest": "a" * 64, "memory_bytes": -5}}, raw)


def test_the_manifest_says_what_the_base_model_is_called_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    commit, repository = "c" * 40, tmp_path / "hub" / "models--user--tiny"
    base = weights(repository / "snapshots" / commit, 1)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (tmp_path / "data.txt").write_text("some words\n" * 1000)
    assert flags(model=Path("user/tiny")) == {"task": {"model": "user/tiny"}}
    assert flags(model=Path("models/mine/x")) == {"task": {"model": str(tmp_path / "models/mine/x")}}
    raw = {"task": {"name": "hf-lm", "model": "user/tiny", "lora": 2, "data": str(tmp_path / "data.txt")}}
    made = founded(tmp_path / "lab", raw)
    assert made.chain.newest.terms.settings["base"]["hub"] == f"user/tiny@{commit}"  # type: ignore[index,call-overload]
    with pytest.raises(UsageError) as told:
        membership(tmp_path / "a" / "node", {}, read_invite(made.line))
    assert f"--model user/tiny@{commit}" in str(told.value.hint)
    for model in ("user/tiny", f"user/tiny@{commit}", str(base)):
        joined(tmp_path / model.replace("/", "-"), made.line, {"task": {"model": model}})
    digest = made.chain.newest.terms.settings["base"]["digest"]  # type: ignore[index,call-overload]
    for hub in ("\x1b[2J", "--rm", 5, "user/x y"):
        with pytest.raises(UsageError) as told:
            check_base({"base": {"digest": digest, "hub": hub}}, {"task": {"name": "hf-lm"}})
        assert "--model FOLDER" in str(told.value.hint)


@pytest.mark.slow
def test_a_folder_that_cannot_be_replaced_stays_whole(
    runs: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = runs(), tmp_path / "model"
    assert said(capsys, "export", run.folder, "--to", "hf", "--out", out)[0] == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(replaced_folder, "rename_durably", fails)
        code, _, err = said(capsys, "export", run.folder, "--to", "hf", "--out", out, "--force")
    assert (code, "Input/output error" in err) == (1, True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert said(capsys, "export", run.folder, "--to", "hf", "--out", out, "--force")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_an_export_set_aside_is_put_back_where_it_was_stopped_between_its_renames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, made = tmp_path / "mo[d]el", tmp_path / ".mo[d]el.abc"
    for folder in (out, made):
        folder.mkdir()
        (folder / "config.json").write_text(folder.name)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(replaced_folder, "rename_durably", interrupted)
        with pytest.raises(KeyboardInterrupt):
            replaced_folder.put_folder(made, out)
    assert (out / "config.json").read_text() == out.name
    out.rename(tmp_path / ".mo[d]el.abc.before")  # as far as one comes that is killed
    code, _, wrong = said(capsys, "export", tmp_path / "run", "--to", "hf", "--out", out)
    assert code == 2
    assert "it is the one before again" in wrong
    assert "is there already" in wrong
    assert (out / "config.json").read_text() == out.name
