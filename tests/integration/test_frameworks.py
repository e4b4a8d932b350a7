"""The callbacks for other people's trainers, with the real frameworks: nothing but one line is added to a script."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from node.privacy.ledger import read_ledger
from node.system.errors import UsageError
from p2ptrain.training import private_moves
from p2ptrain.training.private_training import PrivateTraining
from p2ptrain.training.user_model import UserModel

pytestmark = [
    pytest.mark.paired,
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the frameworks' own, at their imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ALONE: dict[str, object] = {
    "network.listen": ["/ip4/127.0.0.1/tcp/0"],
    "network.upnp": False,
    "node.metrics_port": -1,
    "node.linger_s": 1.0,
}
MOMENTUM: dict[str, object] = {"sync.strategy": "diloco", "sync.beta": 0.5, "sync.alpha": 0.8}
"""Corrects the model of a member that is alone, too."""
PRIVATE: dict[str, object] = {
    "privacy.privatizer": "update",
    "privacy.noise": 2.0,
    "privacy.clip": 0.05,
    "privacy.epsilon": 6.0,
    "privacy.public_start": True,
}
"""A budget of some rounds."""
WORDS = ("to train one model together ", "with nobody in the middle ", "on the machines of volunteers ")


def bits(model: nn.Module) -> bytes:
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


def hf_model() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=128,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=32,
        )
    )


def hf_train(
    folder: Path,
    *,
    callbacks: list[Any],
    model: Any = None,
    steps: int = 18,
    resume: bool = False,
    until: int = 0,
    **more: Any,
) -> Any:
    """An unmodified script for the Trainer. `until`: it is killed after so many steps, as far as files go."""
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    texts = [(WORDS[index % 3] * 2)[index % 7 :][:24] for index in range(64)]
    rows = [{"input_ids": list(text.encode()), "labels": list(text.encode())} for text in texts]

    class Killed(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if until and state.global_step == until:
                raise KeyboardInterrupt

    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=steps,
        save_steps=5,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-2,
        seed=3,
        **more,
    )
    trainer = transformers.Trainer(
        hf_model() if model is None else model,
        arguments,
        train_dataset=datasets.Dataset.from_list(rows),
        eval_dataset=datasets.Dataset.from_list(rows[:8]),
        callbacks=[*callbacks, Killed()],
    )
    trainer.train(resume_from_checkpoint=True if resume else None)
    return trainer


def transformers_callback() -> Any:
    return pytest.importorskip("transformers").TrainerCallback


def swarm_callback(folder: Path, **more: Any) -> Any:
    pytest.importorskip("transformers")
    from p2ptrain.integrations.transformers import SwarmCallback

    return SwarmCallback(run_dir=folder / "run", inner_steps=4, settings={**ALONE, **more}, quiet=True)


def told(run: Path, event: str) -> list[dict[str, Any]]:
    lines = (run / "node" / "events.jsonl").read_text().splitlines()
    return [fields for fields in map(json.loads, lines) if fields["event"] == event]


def released(folder: Path) -> int:
    """How many rounds' moves the ledger has."""
    return sum(read_ledger(folder / "run" / "node" / "privacy.jsonl").releases.values())


def lora() -> Any:
    """The model with an adapter, which alone is trained."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(hf_model(), config)


@pytest.mark.parametrize("model", [hf_model, lora], ids=["whole", "lora"])
def test_the_hf_trainer_ends_with_its_budget_and_what_left_is_clipped(
    tmp_path: Path, model: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[torch.Tensor] = []
    hide_ = private_moves.hide_

    def hiding(move_d: torch.Tensor, privacy: PrivateTraining) -> None:
        hide_(move_d, privacy)
        moves.append(move_d.clone())

    monkeypatch.setattr(private_moves, "hide_", hiding)
    begun = model()
    frozen = {name: it.clone() for name, it in begun.named_parameters() if not it.requires_grad}
    trained = sum(it.numel() for it in begun.parameters() if it.requires_grad)
    callback = swarm_callback(tmp_path, **PRIVATE)
    trainer = hf_train(tmp_path, model=begun, callbacks=[callback], steps=200)
    assert trainer.state.global_step < 200, "the budget ended it"
    assert released(tmp_path) == len(moves) == len(told(tmp_path / "run", "round")) > 0
    assert all(move_d.numel() == trained for move_d in moves), "nothing frozen is in a move"
    (spent,) = told(tmp_path / "run", "privacy_budget_spent")
    assert spent["would_be"] > PRIVATE["privacy.epsilon"]  # type: ignore[operator]
    after = dict(trainer.model.named_parameters())
    assert all(torch.equal(after[name], it) for name, it in frozen.items())


@pytest.mark.parametrize("resume", [True, False], ids=["resumed", "from the start"])
def test_a_private_hf_trainer_goes_on_by_its_run_folder(
    tmp_path: Path, resume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its own checkpoint has: that model's own moves were not released."""
    released_d: list[torch.Tensor] = []
    end_round = UserModel.end_round

    def ending(learner: UserModel) -> None:
        end_round(learner)
        released_d.append(learner.vector())

    monkeypatch.setattr(UserModel, "end_round", ending)
    with pytest.raises(KeyboardInterrupt):
        hf_train(tmp_path, callbacks=[swarm_callback(tmp_path, **PRIVATE)], until=7)
    before = released(tmp_path)
    assert before > 0
    begun: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Begun(transformers_callback()):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            assert callback.swarm is not None
            assert callback.swarm._settings is not None
            assert callback.swarm._settings.config.node.checkpoint_every > 0, "a kill is to cost a few rounds at most"
            begun.append((nn.utils.parameters_to_vector(given["model"].parameters()).detach().clone(), released_d[-1]))

    callback = swarm_callback(tmp_path, **PRIVATE)
    trainer = hf_train(tmp_path, callbacks=[callback, Begun()], resume=resume, steps=200)
    assert torch.equal(*begun[0]), "the model that was released last, also as the interrupted one left"
    assert trainer.state.global_step < 200
    assert released(tmp_path) > before
    (spent,) = told(tmp_path / "run", "privacy_budget_spent")
    assert spent["epsilon"] <= PRIVATE["privacy.epsilon"] < spent["would_be"]  # type: ignore[operator]


def test_a_private_hf_trainer_that_resumes_without_its_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        hf_train(tmp_path, callbacks=[swarm_callback(tmp_path, **PRIVATE)], until=7)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(UsageError, match=r"own moves in it that were not released.*has no run to go on with"):
        hf_train(tmp_path, callbacks=[swarm_callback(tmp_path, **PRIVATE)], resume=True)


def test_the_hf_trainer_resumes_twice_in_a_row_bit_for_bit(tmp_path: Path) -> None:
    expected = bits(hf_train(tmp_path / "plain", callbacks=[]).model)
    folder = tmp_path / "ours"
    for until, resume in ((7, False), (13, True)):
        with pytest.raises(KeyboardInterrupt):  # of which the Trainer tells no callback: the next one leaves
            hf_train(folder, callbacks=[swarm_callback(folder)], until=until, resume=resume)
    trainer = hf_train(folder, callbacks=[swarm_callback(folder)], resume=True)
    assert bits(trainer.model) == expected
    assert [fields["round"] for fields in told(folder / "run", "resumed")] == sorted(
        fields["round"] for fields in told(folder / "run", "resumed")
    )
    assert len(told(folder / "run", "resumed")) == 2
    losses = [fields["train_loss"] for fields in told(folder / "run", "round") if fields["train_loss"] is not None]
    assert losses, "what the Trainer logs is shown where the node is watched"
    with pytest.raises(UsageError, match="begins anew"):
        hf_train(folder, callbacks=[swarm_callback(folder)])


def test_the_best_model_is_not_corrected_after_it_was_loaded(tmp_path: Path) -> None:
    callback = swarm_callback(tmp_path, **MOMENTUM)
    trainer = hf_train(
        tmp_path,
        callbacks=[callback],
        eval_strategy="steps",
        eval_steps=5,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        steps=15,
    )
    best = Path(trainer.state.best_model_checkpoint)
    from safetensors.torch import load_file

    kept = load_file(best / "model.safetensors")
    state = trainer.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in kept.items())
    assert (best / "p2ptrain_swarm.json").is_file()
    assert callback.swarm is None


@pytest.mark.parametrize("settings", [{}, PRIVATE], ids=["plain", "private"])
def test_a_smaller_batch_after_an_oom_joins_again(tmp_path: Path, settings: dict[str, object]) -> None:
    """The Trainer begins its inner loop again, and calls `on_train_begin` a second time without an end."""
    transformers = pytest.importorskip("transformers")
    failed: list[int] = []

    class OutOfMemory(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step == 6 and not failed:
                failed.append(state.global_step)
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    callback = swarm_callback(tmp_path, **settings)
    trainer = hf_train(tmp_path, callbacks=[callback, OutOfMemory()], auto_find_batch_size=True, steps=10)
    assert failed == [6]
    assert trainer.state.global_step == 10
    assert callback.swarm is None
    assert len(told(tmp_path / "run", "started")) == 2


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(6, 3)


def lightning_fit(folder: Path, *, callbacks: list[Any], steps: int, ckpt: Path | None = None, more: int = 0) -> Any:
    """`more`: steps of a second `fit`, which goes on from the first."""
    pytest.importorskip("lightning")
    import lightning.pytorch as pl

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Digits()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            (x,) = batch
            return nn.functional.cross_entropy(self.inner.net(x), x[:, :3].argmax(1))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=8)
    module = Module()
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(folder),
        callbacks=callbacks,
    )
    trainer.fit(module, loader, ckpt_path=None if ckpt is None else str(ckpt))
    if more:
        trainer.fit_loop.epoch_loop.max_steps = steps + more
        trainer.fit(module, loader)
    if ckpt is None:
        trainer.save_checkpoint(folder / f"{steps}.ckpt")
    return module


def test_lightning_resumes_from_its_own_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from p2ptrain.integrations.lightning import SwarmCallback

    def callback() -> Any:
        return SwarmCallback(run_dir=tmp_path / "run", inner_steps=4, settings=ALONE, quiet=True)

    (tmp_path / "plain").mkdir()
    lightning_fit(tmp_path / "plain", callbacks=[], steps=16)
    expected = bits(lightning_fit(tmp_path / "plain", callbacks=[], steps=24, ckpt=tmp_path / "plain" / "16.ckpt"))
    lightning_fit(tmp_path, callbacks=[callback()], steps=16)
    module = lightning_fit(tmp_path, callbacks=[callback()], steps=24, ckpt=tmp_path / "16.ckpt")
    assert bits(module) == expected
    assert len(told(tmp_path / "run", "resumed")) == 1
    assert sum(fields["steps"] for fields in told(tmp_path / "run", "round")) == 24


def test_a_second_fit_of_lightning_goes_on_with_the_swarms_state(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from p2ptrain.integrations.lightning import SwarmCallback

    (tmp_path / "plain").mkdir()
    expected = bits(lightning_fit(tmp_path / "plain", callbacks=[], steps=16, more=8))
    callback = SwarmCallback(run_dir=tmp_path / "run", inner_steps=4, settings=ALONE, quiet=True)
    assert bits(lightning_fit(tmp_path, callbacks=[callback], steps=16, more=8)) == expected
    (resumed,) = told(tmp_path / "run", "resumed")
    assert resumed["round"] > 0
    assert sum(fields["steps"] for fields in told(tmp_path / "run", "round")) == 24


def test_lightning_ends_with_its_budget(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from p2ptrain.integrations.lightning import SwarmCallback

    callback = SwarmCallback(run_dir=tmp_path / "run", inner_steps=4, settings={**ALONE, **PRIVATE}, quiet=True)
    lightning_fit(tmp_path, callbacks=[callback], steps=200)
    rounds = told(tmp_path / "run", "round")
    assert len(rounds) == released(tmp_path)
    assert 0 < sum(fields["steps"] for fields in rounds) < 200
    assert len(told(tmp_path / "run", "privacy_budget_spent")) == 1


def test_a_private_lightning_run_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from p2ptrain.integrations.lightning import SwarmCallback

    def callback() -> Any:
        return SwarmCallback(run_dir=tmp_path / "run", inner_steps=4, settings={**ALONE, **PRIVATE}, quiet=True)

    lightning_fit(tmp_path, callbacks=[callback()], steps=8)
    before = released(tmp_path)
    assert before >= 2, "a round has its entry before its first step"
    lightning_fit(tmp_path, callbacks=[callback()], steps=16, ckpt=tmp_path / "8.ckpt")
    assert released(tmp_path) >= before + 2
    assert sum(fields["steps"] for fields in told(tmp_path / "run", "round")) == 16
    assert len(told(tmp_path / "run", "resumed")) == 1


def test_an_exception_in_lightning_leaves_at_once(tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from p2ptrain.integrations.lightning import SwarmCallback

    class Failing(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 6:
                raise ArithmeticError

    callback = SwarmCallback(run_dir=tmp_path / "run", inner_steps=4, settings=ALONE, quiet=True)
    with pytest.raises(ArithmeticError):
        lightning_fit(tmp_path, callbacks=[callback, Failing()], steps=16)
    assert callback.swarm is None
    assert told(tmp_path / "run", "interrupted")[0]["summary"]["steps"] == 6


@pytest.mark.parametrize("algorithm", ["LocalSGD", "DiLoCo"])
def test_torchfts_own_classes_run_over_a_swarm(tmp_path: Path, algorithm: str) -> None:
    """Three members, each with data of its own, end with one model, as over torchft's process group."""
    local_sgd = pytest.importorskip("torchft.local_sgd")
    from p2ptrain.integrations.torchft import GossipManager

    managers: dict[int, Any] = {}
    models = {index: nn.Linear(8, 2) for index in range(3)}
    start = {name: value.clone() for name, value in models[0].state_dict().items()}
    errors: list[BaseException] = []

    def loop(index: int, peers: list[str]) -> None:
        try:
            model = models[index]
            model.load_state_dict(start)
            inner = torch.optim.SGD(model.parameters(), lr=0.05)
            outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.3, nesterov=True)
            manager = GossipManager(
                [model], peers=peers, run_dir=tmp_path / str(index), wait_for=2, settings=ALONE, quiet=True
            )
            managers[index] = manager
            with manager:
                algorithms = {
                    "LocalSGD": lambda: local_sgd.LocalSGD(manager, model, inner, sync_every=5),
                    "DiLoCo": lambda: local_sgd.DiLoCo(manager, [model], inner, outer, sync_every=5),
                }
                with algorithms[algorithm]():
                    for step in range(60):
                        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(100 * index + step))
                        loss = nn.functional.mse_loss(model(x), x[:, :2] * (index + 1))
                        inner.zero_grad()
                        loss.backward()
                        inner.step()
                assert manager.current_step() == 12
                assert manager.num_participants() <= 3
        except BaseException as error:
            errors.append(error)

    first = threading.Thread(target=loop, args=(0, []))
    first.start()
    ends = time.monotonic() + 30
    while 0 not in managers or not managers[0].addresses:
        assert time.monotonic() < ends
        time.sleep(0.05)
    others = [threading.Thread(target=loop, args=(index, managers[0].addresses)) for index in (1, 2)]
    for thread in others:
        thread.start()
    for thread in (first, *others):
        thread.join(90)
    assert errors == []
    weights = [model.weight.detach() for model in models.values()]
    apart = max(float((weights[0] - other).norm() / weights[0].norm()) for other in weights[1:])
    assert apart < 0.05, "they were averaged: alone each would learn another factor"
    alone = {index: models[index].weight.detach()[0, 0].item() for index in models}
    assert all(1.2 < value < 2.6 for value in alone.values()), "2 is the mean of the three tasks' factors 1, 2 and 3"
