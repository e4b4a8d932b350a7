"""The Python that the how-to pages show is run as it stands: each snippet joins a swarm that another member has begun.

What a page leaves to its reader (a model, an optimizer, batches) is made here. Snippets of other projects are not run.
"""

import copy
import itertools
import re
import runpy
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import p2ptrain
from node.cli.app import app
from node.config.schema import known_keys
from node.config.toml_source import parse_set
from p2ptrain.integrations import swarm as swarm_module
from p2ptrain.integrations.swarm import Swarm

pytestmark = [
    pytest.mark.paired,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the frameworks' own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "docs" / "how-to" / f"{name}.md"
    for name in ("your-own-loop", "coming-from", "hf-trainer", "sft", "lightning", "vit", "notebook")
]
OTHERS = ("hivemind.", "flare.")
"""What a snippet of another project begins its names with."""
PLACEHOLDER = "/ip4/.../p2p/..."
QUIET: dict[str, object] = {"network.upnp": False, "node.metrics_port": -1, "node.linger_s": 0.5}
LOOPS, TORCHFT = "--inner-steps 20", "sync.compressor=none"
"""What the commands say that found a swarm: for loops and trainers, and for torchft's classes."""
BATCHES = 24
"""A round more than the steps of one, where a snippet says 20."""

Names = dict[str, Any]


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def ours() -> list[Any]:
    return [
        pytest.param(source, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, source in enumerate(snippets(page))
        if not any(name in source for name in OTHERS)
    ]


def loop_names() -> Names:
    """A small model and what a loop of one's own has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    draw = torch.Generator().manual_seed(1)
    loader = [torch.randn(4, 8, generator=draw) for _ in range(BATCHES)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch) - batch[:, :2]).square().mean()

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[torch.Tensor]) -> None:
        for batch in loader:
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    return {
        "model": model,
        "optimizer": optimizer,
        "inner": optimizer,
        "outer": torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.3, nesterov=True),
        "loader": loader,
        "batches": itertools.cycle(loader),
        "loss": loss,
        "compute_loss": loss,
        "train": train,
    }


def vit_names() -> Names:
    pytest.importorskip("transformers")
    example = runpy.run_path(str(ROOT / "examples" / "vit_digits.py"))
    model = example["small_vit"]()
    draw = torch.Generator().manual_seed(1)
    loader = [(torch.rand(4, 1, 8, 8, generator=draw), torch.randint(10, (4,), generator=draw)) for _ in range(BATCHES)]
    images, labels = loader[0]

    def evaluate(model: nn.Module) -> float:
        return float(model(pixel_values=images, labels=labels).loss)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "optimizer": optimizer, "loader": loader, "evaluate": evaluate}


def trainer_names(folder: Path) -> Names:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("trl")
    example = runpy.run_path(str(ROOT / "examples" / "sft_trl.py"))
    tokenizer = example["bytes_tokenizer"]()
    rows = [{"input_ids": list(range(8)), "labels": list(range(8))}] * 8
    arguments = transformers.TrainingArguments(
        str(folder / "out"), max_steps=BATCHES, use_cpu=True, report_to="none", disable_tqdm=True, save_steps=0.5
    )
    return {"model": example["small_llama"](tokenizer), "arguments": arguments, "data": rows}


def sft_names(folder: Path) -> Names:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    example = runpy.run_path(str(ROOT / "examples" / "sft_trl.py"))
    tokenizer = example["bytes_tokenizer"]()
    example["write_conversations"](folder / "chat.jsonl", seed=0, count=16)
    arguments = trl.SFTConfig(
        str(folder / "out"),
        max_steps=BATCHES,
        max_length=48,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
    )
    data = datasets.load_dataset(
        "json", data_files=str(folder / "chat.jsonl"), split="train", cache_dir=str(folder / "cache")
    )
    model = example["small_llama"](tokenizer)
    return {"model": model, "arguments": arguments, "data": data, "tokenizer": tokenizer}


def lightning_names() -> Names:
    pytest.importorskip("lightning")
    example = runpy.run_path(str(ROOT / "examples" / "lightning_trainer.py"))
    torch.manual_seed(0)
    loader, _ = example["loaders"]("0123456789", 0)
    module = example["DigitsModule"]()
    return {"module": module, "model": module, "loader": loader}


def names_for(source: str, folder: Path) -> Names:
    """What the reader of this snippet has already."""
    kinds: dict[str, Callable[[], Names]] = {
        "pixel_values": vit_names,
        "transformers import Trainer": lambda: trainer_names(folder),
        "import SFTTrainer": lambda: sft_names(folder),
        "lightning.pytorch": lightning_names,
    }
    made = next((make for words, make in kinds.items() if words in source), loop_names)()
    return {"p2ptrain": p2ptrain, **made}


@pytest.fixture(autouse=True)
def quietly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No router is asked, and no port is opened for a page. All else of `join` is as a user has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    real = swarm_module.settings_of

    def settings_of(*, settings: Any = None, quiet: bool = False, **more: Any) -> Any:
        return real(settings={**QUIET, **(settings or {})}, quiet=True, **more)

    monkeypatch.setattr(swarm_module, "settings_of", settings_of)
    pytest.importorskip("torchft")
    monkeypatch.setattr("p2ptrain.integrations.torchft.settings_of", settings_of)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def another_member(model: nn.Module, **how: Any) -> Iterator[Swarm]:
    """A member that is there and trains, with the same initial model, and moves nothing of it."""
    own = copy.deepcopy(model)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.0)
    ends = threading.Event()
    with p2ptrain.join(own, optimizer, **how) as swarm:

        def steps() -> None:
            while not ends.wait(0.02):
                for parameter in own.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                optimizer.step()

        thread = threading.Thread(target=steps)
        thread.start()
        try:
            yield swarm
        finally:
            ends.set()
            thread.join()
            swarm.leave(cut_short=True)


@contextmanager
def torchft_member(source: str, folder: Path) -> Iterator[None]:
    """The snippet in another thread, as the member who founded the swarm: it trains until the block ends."""
    names, ends, errors = loop_names(), threading.Event(), []

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[torch.Tensor]) -> None:
        for batch in itertools.cycle(loader):
            if ends.wait(0.01):
                return
            names["loss"](model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    def run() -> None:
        try:
            exec(compile(source.replace("invite.txt", "friends"), "founder", "exec"), {**names, "train": train})
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while thread.is_alive() and not [
            file for file in folder.glob("**/events.jsonl") if '"started"' in file.read_text()
        ]:
            time.sleep(0.05)
        yield
    finally:
        ends.set()
        thread.join()
    assert errors == []


def founding(wanted: str) -> list[str]:
    """The words of the page's command that founds a swarm and says `wanted`."""
    page = (ROOT / "docs" / "how-to" / "your-own-loop.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (command,) = (
        line for line in re.findall(r"^    p2ptrain (swarm create .*)$", page, re.MULTILINE) if wanted in line
    )
    return shlex.split(command)


@pytest.mark.thorough
@pytest.mark.parametrize("source", ours())
def test_a_shown_snippet_runs_and_its_steps_count(source: str, tmp_path: Path) -> None:
    names = names_for(source, tmp_path)
    if PLACEHOLDER in source:
        with another_member(names["model"], run_dir="other", inner_steps=20) as other:
            exec(compile(source.replace(PLACEHOLDER, other.addresses[-1]), "snippet", "exec"), names)
    else:
        words = founding(TORCHFT if "GossipManager" in source else LOOPS)
        app([*words, "--no-passphrase", "--at", f"127.0.0.1:{free_port()}"], standalone_mode=False)
        (tmp_path / "invite.txt").write_text((tmp_path / "friends" / "invite.txt").read_text())
        torchft = "GossipManager" in source
        with torchft_member(source, tmp_path) if torchft else another_member(names["model"], swarm="friends"):
            exec(compile(source, "snippet", "exec"), names)
    (run,) = {file.parent for file in tmp_path.glob("**/events.jsonl")} - {
        file.parent for name in ("friends", "other") for file in (tmp_path / name).glob("**/events.jsonl")
    }
    told = (run / "events.jsonl").read_text()
    assert '"event": "round"' in told
    assert '"event": "neighbour_up"' in told


def test_every_snippet_of_a_trainer_and_of_the_others_is_known() -> None:
    everything = [source for page in PAGES for source in snippets(page)]
    assert len(everything) - len(ours()) == 2, "hivemind's and NVFlare's own"
    assert all("p2ptrain" in param.values[0] for param in ours())
    assert len(ours()) >= 12


def test_what_pages_say_of_a_swarm_and_of_settings_there_is() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in set(re.findall(r"\bswarm\.([a-z_]+)", text)) - {"md"}:
            assert hasattr(Swarm, name), f"{page.name}: swarm.{name}"
        for key in re.findall(r'"([a-z]+\.[a-z_]+)":', text):
            section, option, _ = parse_set(f"{key}=0")
            options = known_keys()[section]
            assert options is None or option in options, f"{page.name}: {key}"
