"""Images by folders of classes, and the digits: what is read, and what is refused."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from p2ptrain.tasks import Shard, TaskError, get
from p2ptrain.tasks.digits import Digits
from p2ptrain.tasks.hf.images import open_images
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.model import build_model

CONFIG = TrainConfig(rounds=2, inner_steps=2, warmup_steps=1, device="cpu", eval_examples=16, batch_size=4)


@pytest.fixture
def folder(tmp_path):
    """Red and blue squares, brighter and darker."""
    for name, channel in (("red", 0), ("blue", 2)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(30):
            pixels = np.zeros((12, 10, 3), np.uint8)
            pixels[..., channel] = 100 + 5 * number
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


def test_a_folder_of_classes_is_read(folder):
    images = open_images(folder, size=8, channels=None)
    assert images.classes == ("blue", "red")
    pixels, labels = images.batch(range(60))
    assert pixels.shape == (60, 3, 8, 8)
    assert labels.tolist() == [0] * 30 + [1] * 30
    brightest = images.batch([30 + sorted(map(str, range(30))).index("29")])[0]
    assert torch.allclose(brightest[0, :, 0, 0], torch.tensor([(100 + 5 * 29) / 127.5 - 1, -1.0, -1.0]))
    grey, _ = open_images(folder, size=4, channels=1).batch([0])
    assert grey.shape == (1, 1, 4, 4)


def test_every_image_has_one_place_and_follows_its_name(folder):
    images = open_images(folder, size=8, channels=None)
    shards = [set(images.draw(0, seed=0, shard=Shard(index=i, count=2), size=60)) for i in range(2)]
    own = [set(images.own_held_out(Shard(index=i, count=2)).tolist()) for i in range(2)]
    parts = [*shards, *own, set(images.held_out.tolist())]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 60
    held_out = {images._pictures._paths[n].name for n in images.held_out}
    (folder / "red" / "new.png").write_bytes((folder / "red" / "0.png").read_bytes())
    grown = open_images(folder, size=8, channels=None)
    assert held_out <= {grown._pictures._paths[n].name for n in grown.held_out}


def test_the_digits_are_those_of_the_other_task():
    pixels, labels = open_images(None, size=None, channels=None).batch([0, 5])
    wanted, known = Digits().held_out
    assert torch.equal(pixels[:, 0].flatten(1), wanted[[0, 5]] * 2 - 1)
    assert labels.tolist() == known[[0, 5]].tolist()
    larger, _ = open_images(None, size=16, channels=3).batch([0])
    assert torch.equal(larger[0, 2, ::2, ::2], pixels[0, 0])


@pytest.mark.slow
def test_adapters_of_a_classifier_train_its_head_too():
    task = get("hf-vision", lora=2)
    trainer = Trainer(task, CONFIG, Shard())
    names = [name for name, each in trainer.model.named_parameters() if each.requires_grad]
    assert any("classifier" in name for name in names)
    assert all("lora_" in name or "classifier" in name for name in names)
    before = trainer.measure()
    assert set(before.own) == {"accuracy", "own shard"}
    trainer.step()
    assert trainer.measure().loss != before.loss


def test_a_config_to_begin_from_gets_the_classes_of_the_data(folder, tmp_path):
    config = {"model_type": "vit", "image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 8}
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "hidden_dropout_prob": 0.5}
    (tmp_path / "config.json").write_text(json.dumps({**config, **sizes}))
    task = get("hf-vision", model=str(tmp_path / "config.json"), data=folder)
    model = build_model(task, 0)
    assert model.config.id2label == {0: "blue", 1: "red"}
    assert model.config.hidden_dropout_prob == 0.0
    assert task.eval_batches(1)[0][0].shape == (1, 1, 8, 8)
    model.save_pretrained(tmp_path / "two")
    (folder / "green").mkdir()
    (folder / "green" / "0.png").write_bytes((folder / "red" / "0.png").read_bytes())
    with pytest.raises(TaskError, match="tells 2 classes apart, and the data have 3"):
        get("hf-vision", model=str(tmp_path / "two"), data=folder)


def test_mistakes_are_one_line(folder, tmp_path):
    with pytest.raises(TaskError, match="is no folder"):
        get("hf-vision", data=str(tmp_path / "nowhere"))
    with pytest.raises(TaskError, match="has 0 folders with 0 images"):
        get("hf-vision", data=str(folder / "red"))
    (folder / "red" / "0.png").write_bytes(b"no image")
    images = open_images(folder, size=8, channels=None)
    with pytest.raises(TaskError, match=r"red/0\.png cannot be read"):
        images.batch([30])
    with pytest.raises(TaskError, match="size must be 1 pixel or more"):
        get("hf-vision", size=-3)


def test_a_side_is_one_number_also_where_the_configuration_has_two(tmp_path):
    said = {"model_type": "vit", "patch_size": 2, "num_channels": 1, "hidden_size": 16, "num_attention_heads": 2}
    for sides, pixels in (([8, 8], 8), (8, 8)):
        (tmp_path / "config.json").write_text(json.dumps({**said, "image_size": sides}))
        assert get("hf-vision", model=str(tmp_path)).images.size == pixels
    (tmp_path / "config.json").write_text(json.dumps({**said, "image_size": [8, 16]}))
    with pytest.raises(TaskError, match="only square ones"):
        get("hf-vision", model=str(tmp_path))


def test_size_zero_is_no_size():
    with pytest.raises(TaskError, match="size must be 1 pixel or more"):
        get("hf-vision", size=0)


def test_a_head_is_drawn_where_the_weights_have_none_and_nothing_else(folder, tmp_path):
    base = tmp_path / "base"
    get("hf-vision", data=str(folder), size=8).build_model().save_pretrained(base)
    file = base / "model.safetensors"
    weights = load_file(file)
    headless = {name: value for name, value in weights.items() if not name.startswith("classifier")}
    assert len(headless) < len(weights)
    save_file(headless, file, metadata={"format": "pt"})
    get("hf-vision", data=str(folder), model=str(base)).build_model()
    headless.pop(max(headless))
    save_file(headless, file, metadata={"format": "pt"})
    with pytest.raises(TaskError, match="weights lack 1 of the tensors"):
        get("hf-vision", data=str(folder), model=str(base)).build_model()
