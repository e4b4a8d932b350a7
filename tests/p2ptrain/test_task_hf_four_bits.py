"""LoRA over a base model that bitsandbytes holds in 4 bits: it learns, resumes, and is merged into whole weights."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sizes import thorough_but

from p2ptrain.tasks import Shard, get
from p2ptrain.tasks.base import identity_of
from p2ptrain.tasks.hf import open_base
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.flat import fingerprint
from p2ptrain.training.model import build_model, frozen_bytes

LLAMA = {
    **json.loads((Path(__file__).parents[1] / "data" / "tiny-llama.json").read_text()),
    "hidden_size": 64,
    "intermediate_size": 128,
    "tie_word_embeddings": False,
}
KIND = "AutoModelForCausalLM"
VIT = {"model_type": "vit", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
VIT |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 4, "num_channels": 1}
CONFIG = TrainConfig(
    rounds=4, inner_steps=2, warmup_steps=1, learning_rate=0.01, device="cpu", eval_examples=8, batch_size=4
)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Imported here, it costs a second in one process, and not in each that collects the tests."""
    pytest.importorskip("bitsandbytes", reason="comes with the extra bnb", exc_type=ImportError)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four-bits")
    rows = [{"text": f"the number {n} is followed by {n + 1}"} for n in range(400)]
    (folder / "text.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, said, kind in (("lm", LLAMA, KIND), ("vit", VIT, "AutoModelForImageClassification")):
        (folder / f"{name}.json").write_text(json.dumps(said))
        base = open_base(str(folder / f"{name}.json"), kind)
        if name == "vit":
            base.config.num_labels = 10
        torch.manual_seed(7)
        base.build().save_pretrained(folder / name)
    return folder


@pytest.fixture(autouse=True)
def cache(places, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "cache"))


def task_of(places, **options):
    given = {"model": str(places / "lm"), "data": places / "text.jsonl", "length": 16, "lora": 2, "load_in_4bit": True}
    return get("hf-lm", **{**given, **options})


def matrices(model):
    """Layers of the base model that are held in 4 bits, by name."""
    found = {name: module for name, module in model.named_modules() if name.endswith("base_layer")}
    assert found
    return found


def test_frozen_matrices_take_four_bits_as_forecast(places):
    task = task_of(places)
    model = build_model(task, 1)
    assert {each.weight.dtype for each in matrices(model).values()} == {torch.uint8}
    assert frozen_bytes(model) == task.built.size().frozen_bytes
    whole = task_of(places, load_in_4bit=False)
    assert frozen_bytes(build_model(whole, 1)) == whole.built.size().frozen_bytes > 2 * frozen_bytes(model)


def test_members_with_and_without_are_in_one_run(places):
    tasks = [task_of(places, load_in_4bit=four_bit) for four_bit in (True, False)]
    models = [build_model(task, 1) for task in tasks]
    assert fingerprint(models[0]) == fingerprint(models[1])
    assert len({identity_of(task, model) for task, model in zip(tasks, models, strict=True)}) == 1


def test_it_learns_and_resumes_to_the_bit_and_evaluations_leave_the_base_as_it_was(places):
    """bitsandbytes packs weights again in an evaluation on some CPUs, in place; training shares them."""
    task = task_of(places)
    whole = Trainer(task, CONFIG, Shard(index=1, count=3))
    before = {name: each.weight.clone() for name, each in matrices(whole.model).items()}
    first = whole.measure().loss
    for _ in range(4):
        whole.step()
    state = whole.state_dict()
    losses = [whole.step() for _ in range(4)]
    assert whole.measure().loss < 0.97 * first
    assert all(torch.equal(each.weight, before[name]) for name, each in matrices(whole.model).items())
    resumed = Trainer(task_of(places), CONFIG, Shard(index=1, count=3))
    resumed.load_state_dict(state)
    assert [resumed.step() for _ in range(2)] == losses[:2]
    again = Trainer(task_of(places), CONFIG, Shard(index=1, count=3))
    again.load_state_dict(resumed.state_dict())
    assert [again.step() for _ in range(2)] == losses[2:]
    assert torch.equal(whole.vector(), again.vector())


@pytest.mark.parametrize("freeze_a", thorough_but({True}, [False, True]))
def test_merged_it_is_the_whole_base_with_the_products(places, tmp_path, freeze_a):
    from transformers import AutoModelForCausalLM

    task = task_of(places, freeze_a=freeze_a)
    trainer = Trainer(task, CONFIG, Shard())
    for _ in range(2):
        trainer.step()
    model = trainer.model_with()
    factors = {name: each.clone() for name, each in model.named_parameters() if ".lora_" in name}
    task.save(model, tmp_path / "merged", merged=True)
    opened = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "merged").named_parameters())
    base = AutoModelForCausalLM.from_pretrained(places / "lm").named_parameters()
    changed = 0
    for name, weight in base:
        matrix = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{matrix}.lora_A.default.weight" in factors:
            product = factors[f"{matrix}.lora_B.default.weight"] @ factors[f"{matrix}.lora_A.default.weight"]
            weight = weight + 2.0 * product
            changed += 1
        assert torch.allclose(opened[name], weight, atol=1e-7), name
    assert changed == 14


def test_an_adapter_names_its_base_and_is_opened_over_it_in_four_bits(places, tmp_path):
    from peft import AutoPeftModelForCausalLM

    from p2ptrain.tasks.hf.base_model import _four_bits, _keep_packed_once, peft_quiet

    task = task_of(places)
    trainer = Trainer(task, CONFIG, Shard())
    trainer.step()
    model = trainer.model_with()
    task.save(model, tmp_path / "adapter", merged=False)
    with peft_quiet():
        opened = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", quantization_config=_four_bits(KIND))
    _keep_packed_once(opened)
    (batch, _), *_ = task.eval_batches(4)
    with torch.no_grad():
        wanted, found = (each.eval()(input_ids=batch, use_cache=False).logits for each in (model, opened))
    assert torch.equal(wanted, found)


@pytest.mark.thorough
def test_an_image_classifier_trains_over_four_bits(places):
    task = get("hf-vision", model=str(places / "vit"), lora=2, load_in_4bit=True)
    trainer = Trainer(task, replace(CONFIG, rounds=20, batch_size=16, eval_examples=64), Shard())
    assert frozen_bytes(trainer.model) == task.built.size().frozen_bytes
    first = trainer.measure().loss
    for _ in range(40):
        trainer.step()
    assert trainer.measure().loss < 0.9 * first


@pytest.mark.thorough
def test_nothing_of_it_is_told_on_the_terminal(places):
    code = "from p2ptrain.tasks.hf.extras import require; require('peft'); require('bitsandbytes')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
