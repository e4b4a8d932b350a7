"""Tensors written to a file a piece at a time: safetensors reads them, whatever they are and wherever they lie."""

import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from p2ptrain.saved import tensor_file
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.saved.tensor_file import DTYPE_NAMES, OpenedFile, TensorsInFile, keep_in_file, save_file


def every_kind() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    kinds = {
        f"x.{name}": torch.randn(7, 3, generator=generator).mul(50).to(dtype) for dtype, name in DTYPE_NAMES.items()
    }
    odd = {"none": torch.empty(0), "one": torch.tensor(3.5), "turned": torch.arange(12.0).view(3, 4).T}
    return kinds | odd | {'é"': torch.ones(2)}


def test_safetensors_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "PIECE_BYTES", 16)
    tensors = every_kind()
    kept = keep_in_file({name: value for name, value in tensors.items() if name.startswith("x.")}, tmp_path)
    assert not list(tmp_path.iterdir())
    save_file({**tensors, **kept}, tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name
    with pytest.raises(FileExistsError):
        save_file(tensors, tmp_path / "file")


def test_what_is_kept_does_not_change_with_the_tensor(tmp_path: Path) -> None:
    x_d = torch.arange(5.0)
    kept = keep_in_file({"x": x_d}, tmp_path)
    x_d.zero_()
    save_file(kept, tmp_path / "file")
    assert torch.equal(load_file(tmp_path / "file")["x"], torch.arange(5.0))


def test_a_type_that_no_file_holds_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"c is torch\.complex64"):
        save_file({"c": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_a_nameless_file_is_read_by_slices(tmp_path: Path) -> None:
    file = NamelessFile(tmp_path)
    file.append(b"0123")
    file.append(memoryview(b"4567"))
    assert len(file) == 8
    assert (file[2:6], file[6:100], file[8:9], file[3:3]) == (b"2345", b"67", b"", b"")


def test_tensors_in_a_file_are_found_under_other_names_and_not_kept(tmp_path: Path) -> None:
    tensors = every_kind()
    save_file(tensors, tmp_path / "file")
    found = TensorsInFile(OpenedFile(str(tmp_path / "file")))
    assert found.keys() == tensors.keys()
    some = found.renamed({"a": "one", "b": "turned"}).renamed({"c": "b"})
    assert dict(some).keys() == {"c"}
    assert torch.equal(some["c"], tensors["turned"])
    some["c"].zero_()  # a private copy
    assert torch.equal(found["turned"], tensors["turned"])
    held = weakref.ref(found["one"])
    assert held() is None
    with pytest.raises(KeyError):
        some["a"]
