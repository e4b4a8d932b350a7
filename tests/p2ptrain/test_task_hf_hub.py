"""Names of the hub, from a cache laid out as the hub's own library does it: the real library, and no network."""

import json
from pathlib import Path

import pytest
import torch

from p2ptrain.tasks import TaskError, get
from p2ptrain.tasks.base import identity_of
from p2ptrain.tasks.hf import open_base
from p2ptrain.tasks.hf.base_model import digest_of_weights, folder_with_weights, pinned
from p2ptrain.tasks.hf.hub import HubName, commit_of, hub_name
from p2ptrain.training.model import build_model

TINY = Path(__file__).parents[1] / "data" / "tiny-llama.json"
KIND = "AutoModelForCausalLM"
FIRST, SECOND = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """The hub's cache, and everything else's, in this test's folder; whoever asks the network fails at once."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hub(tmp_path):
    return tmp_path / "hub"


def repository(hub: Path, name: str, commits: dict[str, int], main: str, *, kind: str = "models") -> Path:
    """A repository in the cache: by commit, the seed of the weights; `main` is what the branch was when it was
    fetched."""
    folder = hub / f"{kind}--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(main)
    for commit, seed in commits.items():
        torch.manual_seed(seed)
        open_base(str(TINY), KIND).build().save_pretrained(folder / "snapshots" / commit)
    return folder


def test_what_is_a_name_of_the_hub(tmp_path):
    assert hub_name("user/name") == HubName(repo="user/name")
    assert hub_name("user/na.me-1@v1.0") == HubName(repo="user/na.me-1", revision="v1.0")
    assert str(hub_name(f"user/name@{FIRST}")) == f"user/name@{FIRST}"
    nothing = (
        "name",
        "/user/name",
        "./user/name",
        "~/name",
        "a/b/c",
        "user/name@",
        "user/../x",
        "user/n\n",
        "u/" * 200,
    )
    assert [hub_name(word) for word in nothing] == [None] * len(nothing)
    (tmp_path / "user" / "name").mkdir(parents=True)
    assert hub_name("user/name") is None  # a folder here


def test_a_name_is_the_branch_that_was_fetched_and_a_revision_its_commit(hub):
    folder = repository(hub, "user/tiny", {FIRST: 1, SECOND: 2}, main=SECOND)
    assert folder_with_weights("user/tiny") == folder / "snapshots" / SECOND
    assert pinned("user/tiny") == HubName(repo="user/tiny", revision=SECOND)
    assert pinned(str(folder / "snapshots" / SECOND)) is None
    first = folder_with_weights(f"user/tiny@{FIRST}")
    assert first is not None
    assert (commit_of(first), commit_of(folder)) == (FIRST, None)
    assert digest_of_weights(first) != digest_of_weights(folder / "snapshots" / SECOND)


def test_a_swarm_trains_from_it_as_from_a_folder(hub, tmp_path):
    folder = repository(hub, "user/tiny", {FIRST: 1}, main=FIRST)
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": f"number {n}"}) for n in range(200)))
    options = {"data": tmp_path / "text.jsonl", "length": 16, "lora": 2}
    tasks = [get("hf-lm", model=model, **options) for model in ("user/tiny", str(folder / "snapshots" / FIRST))]
    models = [build_model(task, 1) for task in tasks]
    assert identity_of(tasks[0], models[0]) == identity_of(tasks[1], models[1])
    assert all(
        torch.equal(one, other) for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )
    tasks[0].save(models[0], tmp_path / "adapter", merged=False)
    said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["revision"]) == ("user/tiny", FIRST)
    tasks[1].save(models[1], tmp_path / "other", merged=False)
    said = json.loads((tmp_path / "other" / "adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["revision"]) == (str(folder / "snapshots" / FIRST), None)


def test_its_tokenizer_is_taken_and_can_be_anothers(hub, tmp_path):
    import tokenizers
    import transformers

    folder = repository(hub, "user/tiny", {FIRST: 1}, main=FIRST)
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="b")
    words.save_pretrained(folder / "snapshots" / FIRST)
    other = repository(hub, "user/words", {}, main=SECOND)
    words.save_pretrained(other / "snapshots" / SECOND)
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": f"number {n}"}) for n in range(200)))
    of_model = get("hf-lm", model="user/tiny", data=tmp_path / "text.jsonl", length=4)
    of_another = get("hf-lm", tokenizer=f"user/words@{SECOND}", data=tmp_path / "text.jsonl", length=4)
    assert of_model.encoder.vocabulary == of_another.encoder.vocabulary == 3


def test_what_is_not_whole_is_not_taken(hub):
    """Without its weights it would be drawn from the seed, and nobody told."""
    folder = repository(hub, "user/tiny", {FIRST: 1, SECOND: 2}, main=FIRST)
    (folder / "snapshots" / FIRST / "model.safetensors").unlink()
    cut = folder / "snapshots" / SECOND
    open_base(str(cut), KIND).build().save_pretrained(cut, max_shard_size="50KB")
    (cut / "model.safetensors").unlink(missing_ok=True)
    next(cut.glob("model-*.safetensors")).unlink()
    for name in ("user/tiny", f"user/tiny@{SECOND}"):
        with pytest.raises(TaskError, match=r"is not a config\.json with all its weights as safetensors") as told:
            open_base(name, KIND)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("options", [{"model": "user/none"}, {"model": "user/none@v1"}, {"tokenizer": "user/none"}])
def test_without_a_network_it_is_one_line_that_says_what_to_do(options):
    with pytest.raises(TaskError, match=r"user/none.* is not here.*hf download user/none --local-dir") as told:
        get("hf-lm", **options)
    assert "\n" not in str(told.value)
    assert "outgoing traffic has been disabled): where" in str(told.value), "the library's sentence, to its end"


def test_what_is_whole_is_taken_without_asking_and_fetched_where_it_is_not(hub, monkeypatch):
    import huggingface_hub

    folder = repository(hub, "user/tiny", {FIRST: 1}, main=FIRST)
    asked = []

    def snapshot(repo, *, local_files_only=False, **how):
        asked.append((repo, local_files_only, how["revision"]))
        return str(folder / "snapshots" / FIRST)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert folder_with_weights(f"user/tiny@{FIRST}")
    assert asked == [("user/tiny", True, FIRST)]
    (folder / "snapshots" / FIRST / "config.json").rename(folder / "away")
    with pytest.raises(TaskError, match="was not fetched whole"):
        folder_with_weights("user/tiny")
    assert asked[1:] == [("user/tiny", True, None), ("user/tiny", False, None)]
