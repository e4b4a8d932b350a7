"""Models of Hugging Face as a swarm begins with them: drawn alike, read alike, and under adapters frozen and shared."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from p2ptrain.attacks import LabelFlip
from p2ptrain.tasks import Shard, TaskError, get
from p2ptrain.tasks.base import identity_of
from p2ptrain.tasks.hf import LoraOptions, adapter_size, extras, open_base, product_gap
from p2ptrain.tasks.hf.base_model import digest_of_config, digest_of_weights
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.flat import fingerprint
from p2ptrain.training.model import build_model

TINY = Path(__file__).parents[1] / "data" / "tiny-llama.json"
CONFIG = TrainConfig(rounds=2, inner_steps=2, warmup_steps=1, device="cpu", eval_examples=8, batch_size=4)

DRAWN = """
import hashlib, sys
from p2ptrain.tasks import get
from p2ptrain.training.flat import FlatParameters, vector_bytes
from p2ptrain.training.model import build_model
for lora in (None, 4):
    task = get("hf-lm", model=sys.argv[1], data=sys.argv[2], length=16, lora=lora)
    print(hashlib.blake2b(vector_bytes(FlatParameters(build_model(task, 5)).vector())).hexdigest())
"""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"the number {n} is followed by {n + 1}"}) for n in range(400)))
    return path


@pytest.fixture
def lm(text):
    def made(**options):
        return get("hf-lm", **{"model": str(TINY), "data": text, "length": 16, **options})

    return made


def trained_names(model):
    return [name for name, each in model.named_parameters() if each.requires_grad]


def saved(folder: Path, seed: int, change: float = 0.0) -> Path:
    """A folder with weights, as `save_pretrained` writes it."""
    torch.manual_seed(seed)
    model = open_base(str(TINY), "AutoModelForCausalLM").build()
    with torch.no_grad():
        next(model.parameters())[0, 0] += change
    model.save_pretrained(folder)
    return folder


def test_a_drawn_model_is_fp64_rounded_and_leaves_the_generator_to_its_owner(lm):
    before = torch.random.get_rng_state()
    one, other, another = (build_model(lm(), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_default_dtype() is torch.float32
    assert {each.dtype for each in one.parameters()} == {torch.float32}
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.model.embed_tokens.weight, another.model.embed_tokens.weight)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    try:
        base = open_base(str(TINY), "AutoModelForCausalLM")
        wide = base._from_config(torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(one.model.embed_tokens.weight, wide.model.embed_tokens.weight.float())
    assert one.lm_head.weight is one.model.embed_tokens.weight


@pytest.mark.thorough
def test_two_processes_draw_the_same_bytes(text):
    command = [sys.executable, "-c", DRAWN, str(TINY), str(text)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 2


def test_a_folder_with_weights_is_read_whatever_the_seed(lm, tmp_path):
    folder = saved(tmp_path / "base", 7)
    one, other = build_model(lm(model=str(folder)), 1), build_model(lm(model=str(folder)), 2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    torch.manual_seed(7)
    drawn = open_base(str(TINY), "AutoModelForCausalLM").build()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), drawn.parameters(), strict=True))


def without(folder: Path, *gone: str) -> Path:
    """The folder, its file of weights written again without these tensors."""
    file = folder / "model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if name not in gone}
    save_file(kept, file, metadata={"format": "pt"})
    return folder


def test_weights_that_lack_a_tensor_are_refused(lm, tmp_path):
    folder = saved(tmp_path / "base", 7)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")  # tied: in the file once
    open_base(str(folder), "AutoModelForCausalLM").build()
    without(folder, "model.norm.weight")
    for options in ({}, {"lora": 2}):
        with pytest.raises(TaskError, match=r"lack 1 of the tensors that \w+ has \(model\.norm\.weight\)"):
            build_model(lm(model=str(folder), **options), 1)


def test_dropout_is_none(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1}))
    config = open_base(str(tmp_path), "AutoModelForCausalLM").config
    assert config.resid_pdrop == config.embd_pdrop == config.attn_pdrop == 0.0


@pytest.mark.slow
def test_a_step_is_repeated_to_the_bit(lm):
    """Data are addressed, and a checkpoint holds all the rest."""
    for options in ({}, {"lora": 2}):
        whole = Trainer(lm(**options), CONFIG, Shard(index=1, count=3))
        for _ in range(2):
            whole.step()
        state = whole.state_dict()
        losses = [whole.step() for _ in range(2)]
        resumed = Trainer(lm(**options), CONFIG, Shard(index=1, count=3))
        resumed.load_state_dict(state)
        assert [resumed.step() for _ in range(2)] == losses
        assert torch.equal(whole.vector(), resumed.vector())


def test_what_a_shard_holds_out_is_measured_beside_what_all_do(lm):
    task = lm()
    shards = [Trainer(task, CONFIG, Shard(index=index, count=2)).measure() for index in range(2)]
    assert shards[0].loss == shards[1].loss
    assert shards[0].own["own shard"] != shards[1].own["own shard"]
    assert shards[0].own["bits per byte"] == pytest.approx(
        shards[0].loss / 0.6931 / task.store.bytes_per_token, rel=1e-3
    )
    assert 0 < task.store.bytes_per_token < 1  # a byte is a token, and each text has an end beside
    flipped = Trainer(LabelFlip().poison(task), CONFIG, Shard(index=0, count=2)).measure()
    assert flipped.own == shards[0].own


def test_of_an_adapter_only_the_factors_train_and_the_base_is_shared(lm):
    task = lm(lora=2)
    trainer = Trainer(task, CONFIG, Shard())
    names = trained_names(trainer.model)
    assert names
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert trainer.numel == adapter_size(task.built.base, LoraOptions(rank=2)) < 0.2 * task.built.base.numel()
    base = {name: each.clone() for name, each in trainer.model.named_parameters() if not each.requires_grad}
    copy = trainer.model_with()
    trainer.step()
    now = dict(trainer.model.named_parameters())
    assert all(torch.equal(value, now[name]) for name, value in base.items())
    shared = {name: each.data_ptr() for name, each in copy.named_parameters()}
    assert all((shared[name] == each.data_ptr()) is (not each.requires_grad) for name, each in now.items())


@pytest.mark.slow
def test_a_frozen_a_halves_what_travels(lm):
    whole, half = (build_model(lm(lora=2, freeze_a=freeze), 1) for freeze in (False, True))
    assert trained_names(half) == [name for name in trained_names(whole) if ".lora_B." in name]
    named = dict(whole.named_parameters())
    assert all(torch.equal(each, named[name]) for name, each in half.named_parameters())
    base = lm(lora=2).built.base
    sizes = [sum(each.numel() for each in model.parameters() if each.requires_grad) for model in (whole, half)]
    assert sizes == [adapter_size(base, LoraOptions(rank=2, freeze_a=freeze)) for freeze in (False, True)]


def test_a_is_the_same_for_every_type_of_the_base(lm, tmp_path):
    folder = str(saved(tmp_path / "base", 7))
    models = [build_model(lm(model=folder, lora=2, dtype=dtype), 1) for dtype in ("fp32", "bf16")]
    for model, dtype in zip(models, (torch.float32, torch.bfloat16), strict=True):
        types = {each.requires_grad: each.dtype for each in model.parameters()}
        assert types == {True: torch.float32, False: dtype}
    a, b = ([each for each in model.parameters() if each.requires_grad] for model in models)
    assert all(torch.equal(one, other) for one, other in zip(a, b, strict=True))
    assert fingerprint(models[0]) == fingerprint(models[1])


@pytest.mark.slow
def test_members_with_another_base_are_another_run(lm, tmp_path):
    folder, same = saved(tmp_path / "base", 7), saved(tmp_path / "same", 7)
    changed = saved(tmp_path / "changed", 7, change=1e-3)

    def identity(seed=1, **options):
        task = lm(**{"model": str(folder), "lora": 2, **options})
        return identity_of(task, build_model(task, seed))

    assert identity() == identity(model=str(same)) == identity(dtype="bf16") == identity(seed=2)
    others = [
        identity(model=str(changed)),
        identity(lora_alpha=3.0),
        identity(freeze_a=True),
        identity(freeze_a=True, seed=2),  # A does not travel, and B begins as zero: the seed shows nowhere else
        identity(lora=None),
        identity(model=str(TINY)),
        identity(model=str(TINY), seed=2),
    ]
    assert len({identity(), *others}) == 1 + len(others)


def reference_gap(models, names):
    """With whole products, in the words of 2410.09432."""
    gaps = sizes = 0.0
    for name in names:
        a = torch.stack([model[f"{name}.lora_A.default.weight"].double() for model in models])
        b = torch.stack([model[f"{name}.lora_B.default.weight"].double() for model in models])
        mean = (b @ a).mean(0)
        gaps += float((mean - b.mean(0) @ a.mean(0)).square().sum())
        sizes += float(mean.square().sum())
    return gaps**0.5, sizes**0.5


def test_the_product_gap_is_that_of_whole_products():
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (3, 8, 6), "v": (2, 5, 7)}
    models = [
        {
            name: torch.randn(shape, generator=generator)
            for key, (rank, m, k) in shapes.items()
            for name, shape in (
                (f"{key}.lora_A.default.weight", (rank, k)),
                (f"{key}.lora_B.default.weight", (m, rank)),
            )
        }
        | {"classifier.weight": torch.zeros(2)}
        for _ in range(4)
    ]
    found = product_gap(models)
    gap, size = reference_gap(models, shapes)
    assert found is not None
    assert (found.gap, found.size) == (pytest.approx(gap, rel=1e-9), pytest.approx(size, rel=1e-9))
    assert 0 < found.share < 2
    same = product_gap([models[0]] * 3)
    assert same is not None
    assert same.gap < 1e-6 * same.size
    assert product_gap(models[:1]) is product_gap([{"w": torch.zeros(1)}] * 2) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lora": 2000}, "rank from 1 to 1024"),
        ({"freeze_a": True}, "give lora=RANK"),
        ({"dtype": "bf16"}, "give lora=RANK"),
        ({"dtype": "fp8", "lora": 2}, "fp32 or bf16"),
        ({"load_in_4bit": True}, "give lora=RANK"),
        ({"load_in_4bit": True, "lora": 2}, "a base model with weights"),
        ({"lora": 2, "lora_targets": "nothing"}, "lora_targets='nothing'"),
        ({"length": 10_000}, "256 positions"),
        ({"model": "a/folder/of/mine"}, "there is no model a/folder/of/mine: .* a name of the hub"),
        ({"model": __file__}, "describes no model"),
        ({"tokenizer": "nowhere"}, "there is no tokenizer nowhere"),
    ],
)
def test_a_mistake_is_one_line(lm, options, said):
    with pytest.raises(TaskError, match=said) as told:
        build_model(lm(**options), 0)
    assert "\n" not in str(told.value)


def test_a_missing_package_is_one_line_that_says_what_to_install(lm, monkeypatch, tmp_path):
    folder = str(saved(tmp_path / "base", 7))
    for package, line in (("peft", r"p2ptrain\[hf\]"), ("bitsandbytes", r"p2ptrain\[bnb\]")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(TaskError, match=f"pip install '{line}'") as told:
            build_model(lm(model=folder, lora=2, load_in_4bit=package == "bitsandbytes"), 0)
        assert "\n" not in str(told.value)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TaskError, match=r"pip install 'p2ptrain\[hf\]'"):
        extras.require("transformers")


def test_a_model_of_fewer_ids_than_the_tokenizer_has_is_refused(lm, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**json.loads(TINY.read_text()), "vocab_size": 100}))
    with pytest.raises(TaskError, match="the model has 100 ids and the tokenizer 259"):
        lm(model=str(tmp_path))


@pytest.mark.parametrize("place", ["model", "tokenizer"])
def test_code_in_a_folder_never_runs_and_nobody_is_asked(lm, tmp_path, monkeypatch, place):
    """transformers would ask on the terminal, where `yes | p2ptrain ...` has agreed."""
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt="": asked.append(prompt) or "y")
    code = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nclass Own: pass\n"
    (tmp_path / "own.py").write_text(code)
    said = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}
    if place == "tokenizer":
        said = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / ("config.json" if place == "model" else "tokenizer_config.json")).write_text(json.dumps(said))
    with pytest.raises(TaskError):
        lm(**{place: str(tmp_path)})
    assert not asked
    assert not list(tmp_path.rglob("ran"))


def test_the_digest_is_of_the_weights_that_are_loaded(tmp_path):
    """A copy of the swarm's weights under another name makes no other model the swarm's."""
    theirs, mine = saved(tmp_path / "theirs", 7), saved(tmp_path / "mine", 7, change=1.0)
    own = digest_of_weights(mine)
    assert own != digest_of_weights(theirs)
    shutil.copy(theirs / "model.safetensors", mine / "zzz.safetensors")
    assert digest_of_weights(mine) == own
    model = open_base(str(mine), "AutoModelForCausalLM").build()
    torch.save(model.state_dict(), mine / "pytorch_model.bin")
    (mine / "model.safetensors").unlink()
    with pytest.raises(TaskError, match=r"neither model\.safetensors nor"):
        digest_of_weights(mine)
    with pytest.raises(TaskError, match="cannot be built"):
        open_base(str(mine), "AutoModelForCausalLM").build()


def test_the_digest_is_the_same_however_the_weights_are_cut(tmp_path):
    whole = saved(tmp_path / "whole", 7)
    model = open_base(str(whole), "AutoModelForCausalLM").build()
    model.save_pretrained(tmp_path / "cut", max_shard_size="50KB")
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) > 1
    assert digest_of_weights(tmp_path / "cut") == digest_of_weights(whole)
    first, second, *_ = sorted((tmp_path / "cut").glob("*.safetensors"))
    shutil.copy(first, second)
    with pytest.raises(TaskError, match="in two files"):
        digest_of_weights(tmp_path / "cut")


@pytest.mark.parametrize("change", [{"hidden_size": "x"}, {"num_attention_heads": 0}, {"vocab_size": None}])
def test_a_configuration_that_makes_no_model_is_one_line(lm, tmp_path, change):
    (tmp_path / "config.json").write_text(json.dumps({**json.loads(TINY.read_text()), **change}))
    for use in (lambda task: build_model(task, 0), lambda task: task.built.size()):
        with pytest.raises(TaskError) as told:
            use(lm(model=str(tmp_path)))
        assert "\n" not in str(told.value)


def test_a_model_without_a_vocabulary_is_no_language_model(lm, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(TaskError, match="vit has no vocabulary"):
        lm(model=str(tmp_path))


def test_adapters_for_no_layer_are_one_line_also_where_they_are_counted(lm):
    with pytest.raises(TaskError, match="lora_targets='nope'"):
        lm(lora=2, lora_targets="nope").built.size()


def test_rank_zero_is_no_rank(lm):
    with pytest.raises(TaskError, match="a rank from 1"):
        lm(lora=0)


def test_a_model_larger_than_the_machine_is_refused_before_memory_is_taken(lm, tmp_path):
    layers = {"hidden_size": 1 << 16, "intermediate_size": 1 << 18, "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps({**json.loads(TINY.read_text()), **layers}))
    with pytest.raises(TaskError, match="of memory, and this machine has"):
        build_model(lm(model=str(tmp_path)), 0)


def test_weights_in_pickles_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(TINY.read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(TaskError, match="save them as safetensors"):
        open_base(str(tmp_path), "AutoModelForCausalLM")


@pytest.mark.thorough
def test_the_page_s_arithmetic_for_a_large_model_is_the_codes(tmp_path):
    """The shape of Llama 3.1 8B, counted on the meta device: without memory for it."""
    root = Path(__file__).parents[2]
    command = [sys.executable, str(root / "scripts" / "lora_update.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert not done.stderr
    head, table = done.stdout.strip().split("\n\n")
    page = (root / "docs/how-to/hugging-face-models.md").read_text()
    assert head.split(";")[0] in page
    assert table in page
    rows = re.findall(r"^\| (\d+) \| (\S+) \| (yes|no) \| ([\d,]+) \| ([\d.]+) MB \|$", table, re.MULTILINE)
    assert len(rows) == 5
    for *_, parameters, megabytes in rows:
        assert float(megabytes) == pytest.approx(int(parameters.replace(",", "")) * 2 / 8 / 1e6, rel=0.02)


def test_the_mean_of_adapters_with_a_frozen_a_is_the_mean_of_their_products(lm):
    """With a frozen A it is exact, and there is no gap to tell; else there is one."""
    for freeze in (True, False):
        task = lm(lora=2, freeze_a=freeze)
        trainers = [Trainer(task, CONFIG, Shard(index=index, count=2)) for index in range(2)]
        for trainer in trainers:
            for _ in range(3):
                trainer.step()
        models = [trainer.model_with() for trainer in trainers]
        mean = trainers[0].model_with((trainers[0].vector() + trainers[1].vector()) / 2)
        trained = [{name: each for name, each in model.named_parameters() if each.requires_grad} for model in models]
        gap, loss = product_gap(trained), 0.0
        for names in zip(*(products(model) for model in (*models, mean)), strict=True):
            one, other, of_mean = names
            loss = max(loss, float(((one + other) / 2 - of_mean).norm() / ((one + other) / 2).norm()))
        assert (gap is None) is freeze
        assert (loss < 1e-5) is freeze, loss


def products(model):
    """The products of a model's adapters."""
    named = dict(model.named_parameters())
    for name, b in named.items():
        if ".lora_B." in name:
            yield b.detach() @ named[name.replace(".lora_B.", ".lora_A.")].detach()


def test_a_configurations_digest_is_of_what_was_chosen(tmp_path):
    said = json.loads(TINY.read_text())

    def digest(**fields):
        (tmp_path / "config.json").write_text(json.dumps({**said, **fields}))
        return digest_of_config(open_base(str(tmp_path), "AutoModelForCausalLM").config)

    plain = digest()
    assert plain == digest(transformers_version="5.99", torch_dtype="bfloat16", architectures=None)
    assert plain == digest(hidden_act="silu")  # what it is by default
    assert len({plain, digest(hidden_act="gelu"), digest(rms_norm_eps=1e-3)}) == 3
