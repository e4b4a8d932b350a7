"""A model of transformers, as every member of a swarm must begin with it: read from a folder, or drawn from the seed.

What is drawn is drawn in fp64 and rounded, as `p2ptrain/training/model.py` does it for all tasks. Buffers that no file
holds (rotary frequencies) are those that transformers computes in fp32, so that what is exported and read back is the
same model to the last bit. Dropout is set to zero: a step stays a function of its arguments.
"""

import copy
import hashlib
import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import nn

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.hf.extras import require
from p2ptrain.tasks.hf.hub import HubName, commit_of, folder_of, hub_name

CONFIG: Final = "config.json"
WEIGHTS: Final = "*.safetensors"
FETCHED: Final = ("*.json", WEIGHTS, "*.model", "*.jinja", "*.txt")
"""Of a model of the hub: configuration, weights, vocabularies and chat templates."""
DIGEST_BYTES: Final = 32

HEADS: Final = {"AutoModelForImageClassification": "classifier"}
"""By kind of model, the layer that may be missing in a file, as it is drawn anew for the classes of the data: it is
trained as a whole beside adapters, and so never held in 4 bits."""

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of a frozen base model. What is trained is always fp32."""

FOUR_BITS: Final = 4.5
"""Of a parameter held in 4 bits: NF4 has a scale of 32 bits for each 64 (2305.14314)."""

MAX_REASON_CHARS: Final = 300
"""Of a library's message in ours: three lines of a terminal."""


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """Where a model comes from: its configuration, and the folder with its weights."""

    kind: str
    """The class of transformers that makes it, such as AutoModelForCausalLM."""
    config: Any
    folder: Path | None
    """None: there are no weights, they are drawn."""
    hub: HubName | None = None
    """What it is called on the hub, with the commit; None for a folder of the user's own."""

    def build(self, dtype: torch.dtype = torch.float32, *, four_bit: bool = False) -> nn.Module:
        """Return the model in `dtype` on the CPU, drawn from torch's global generator where it has no weights.
        TaskError when it cannot be made."""
        with self._one_line():
            if self.folder is not None:
                return self._loaded(dtype, four_bit=four_bit)
            if four_bit:
                raise TaskError("load_in_4bit is for a base model with weights, and these are drawn")
            self._check_room()
            return self._drawn(dtype)

    def digest(self, model: nn.Module) -> bytes:
        """Return 32 bytes over the weights: those in the folder, whatever type they are loaded as and however they are
        cut into files; where these were drawn, the frozen parameters of `model`. TaskError when they cannot be
        read."""
        if self.folder is not None:
            return digest_of_weights(self.folder)
        return digest_of_tensors({name: each for name, each in model.named_parameters() if not each.requires_grad})

    def numel(self) -> int:
        """How many parameters it has, counted without memory for them. TaskError when it cannot be made."""
        with self._one_line(), torch.device("meta"), _default_dtype(torch.float32):
            return sum(parameter.numel() for parameter in self._from_config(torch.float32).parameters())

    def frozen_bytes(self, dtype: torch.dtype, *, four_bit: bool = False) -> int:
        """Return how many bytes it takes in `dtype`, counted without memory for it: in 4 bits are the matrices of its
        layers, and neither embeddings nor the output layer. TaskError when it cannot be made."""
        with self._one_line(), torch.device("meta"), _default_dtype(torch.float32):
            model = self._from_config(torch.float32)
        whole = sum(parameter.numel() for parameter in model.parameters())
        packed = sum(matrix.numel() for matrix in _packable(model, self.kind)) if four_bit else 0
        return (whole - packed) * dtype.itemsize + int(packed * FOUR_BITS / 8)

    def _one_line(self) -> AbstractContextManager[None]:
        return one_line(f"the model {self.folder or self.config.model_type} cannot be built")

    def _check_room(self) -> None:
        """Before memory is asked for: the system may give it, and kill the process that uses it."""
        need, have = self.numel() * torch.float64.itemsize, _memory()
        if have is not None and need > have:
            raise TaskError(f"drawing it takes {need / 1e9:.3g} GB of memory, and this machine has {have / 1e9:.3g} GB")

    def _drawn(self, dtype: torch.dtype) -> nn.Module:
        with _default_dtype(torch.float64):
            wide = self._from_config(torch.float64)
        with torch.random.fork_rng(devices=[]), _default_dtype(torch.float32):
            model = self._from_config(dtype)
        model.load_state_dict(wide.state_dict())
        return model

    def _loaded(self, dtype: torch.dtype, *, four_bit: bool) -> nn.Module:
        options = {"quantization_config": _four_bits(self.kind)} if four_bit else {}
        with torch.random.fork_rng(devices=[]), _default_dtype(torch.float32):
            model, read = self._class.from_pretrained(
                self.folder,
                config=copy.deepcopy(self.config),
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
        _check_complete(model, read["missing_keys"], draws_head=self.kind in HEADS)
        if four_bit:
            _keep_packed_once(model)
        whole: nn.Module = model.train()
        return whole

    def _from_config(self, dtype: torch.dtype) -> nn.Module:
        # A copy: it writes the type that it was built with into the configuration.
        model: nn.Module = self._class.from_config(copy.deepcopy(self.config), dtype=dtype, trust_remote_code=False)
        return model

    @property
    def _class(self) -> Any:
        return getattr(require("transformers"), self.kind)


def open_base(path: str, kind: str) -> BaseModel:
    """Return the model in a folder, with its weights or with a config.json only, of such a file, or of that name on the
    hub. TaskError when there is none."""
    where = place_of(path)
    folder, file = (where, where / CONFIG) if where.is_dir() else (None, where)
    if not file.is_file():
        hint = f"give a folder with {CONFIG} and weights, a {CONFIG} to begin from, or a name of the hub: user/name"
        raise TaskError(f"there is no model {path}: {hint}")
    with one_line(f"{file} describes no model"):
        # Left open, transformers asks on the terminal whether to run the folder's code, and takes a piped "y" for yes.
        config = require("transformers").AutoConfig.from_pretrained(
            file, local_files_only=True, trust_remote_code=False
        )
    without_dropout(config)
    has_weights = folder is not None and any(folder.glob(WEIGHTS))
    if folder is not None and not has_weights and any(folder.glob("*.bin")):
        raise TaskError(f"the weights in {folder} are pickles: save them as safetensors")
    return BaseModel(kind=kind, config=config, folder=folder if has_weights else None, hub=pinned(path))


def place_of(path: str) -> Path:
    """Return where the model lies: a name of the hub stands for its folder in the hub's cache, fetched if need be.
    Raises TaskError where it cannot be."""
    name = hub_name(path)
    return Path(path).expanduser() if name is None else _of_hub(name)


def _of_hub(name: HubName) -> Path:
    return folder_of(name, FETCHED, _is_whole, what="a config.json with all its weights as safetensors")


def _is_whole(folder: Path) -> bool:
    """Whether all weights are there: of a fetch that was broken off they are not, and where there are none at all they
    would be drawn, without a word."""
    with suppress(TaskError, OSError, ValueError, KeyError):
        return (folder / CONFIG).is_file() and all(path.is_file() for path in weight_files(folder))
    return False


def pinned(path: str) -> HubName | None:
    """Return the name of the hub with the commit that it stands for here; None for a folder. Raises TaskError."""
    name = hub_name(path)
    return None if name is None else HubName(repo=name.repo, revision=commit_of(_of_hub(name)))


def folder_with_weights(path: str) -> Path | None:
    """Return the folder that `path` names if there are weights in it. Raises TaskError for a name of the hub that
    cannot be fetched."""
    folder = place_of(path)
    return folder if folder.is_dir() and any(folder.glob(WEIGHTS)) else None


def without_dropout(config: Any) -> None:
    """Set every rate of dropout in a configuration to zero."""
    for name, value in list(vars(config).items()):
        if isinstance(value, float) and ("drop" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)


def digest_of_config(config: Any) -> bytes:
    """Return 32 bytes over what a configuration has that is not its kind's default: a later release of transformers has
    further fields. Which release wrote it, where it lies and which type its weights are stored in is left out."""
    fields = {
        key: value
        for key, value in config.to_diff_dict().items()
        if key not in ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures")
    }
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def digest_of_weights(folder: Path) -> bytes:
    """Return 32 bytes over the tensors of the safetensors files that are loaded from `folder`, in the order of their
    names. TaskError when one cannot be read, or is there twice."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with one_line(f"the weights in {folder} cannot be read"):
        files: dict[str, Path] = {}
        for path in weight_files(folder):
            for name in _names_in(path):
                if name in files:
                    raise TaskError(f"{name} is in two files of {folder}: which of them is loaded is not said")
                files[name] = path
        for name in sorted(files):
            with safe_open(files[name], framework="pt") as file:
                _update(digest, name, file.get_tensor(name))
    return digest.digest()


def digest_of_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return 32 bytes over tensors, in the order of their names."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(tensors):
        _update(digest, name, tensors[name])
    return digest.digest()


def _update(digest: "hashlib.blake2b", name: str, value: torch.Tensor) -> None:
    plain = value.detach().to("cpu").contiguous()
    digest.update(f"{name}:{plain.dtype}:{'x'.join(map(str, plain.shape))}\n".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights that transformers reads: others beside them may hold anything. TaskError where there
    are none."""
    one, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if one.is_file():
        return [one]
    if not index.is_file():
        raise TaskError(
            f"there is neither {one.name} nor {index.name} in {folder}: save the model with save_pretrained"
        )
    return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]


def _check_complete(model: Any, missing: Collection[str], *, draws_head: bool) -> None:
    """TaskError where the weights lack what transformers has then drawn. Tied tensors are in a file once."""
    backbone = f"{model.base_model_prefix}."
    lacking = sorted(name for name in missing if not draws_head or name.startswith(backbone))
    if lacking:
        names = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")
        raise TaskError(
            f"its weights lack {len(lacking)} of the tensors that {type(model).__name__} has ({names}): save the whole "
            "model with save_pretrained, or give the folder of a model of this kind"
        )


def _names_in(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def _packable(model: Any, kind: str) -> Iterator[torch.Tensor]:
    """The matrices that are held in 4 bits: all but the output layer's."""
    head, output = HEADS.get(kind), model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not output and name != head:
            yield module.weight


def _four_bits(kind: str) -> Any:
    require("bitsandbytes", install="p2ptrain[bnb]")
    return require("transformers").BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=[HEADS[kind]] if kind in HEADS else None,  # of 4 bits, too, whatever it is called
    )


def _keep_packed_once(model: nn.Module) -> None:
    """Keep the layers from packing their weights again. On CPUs with AVX512-BF16 bitsandbytes does so, in place, in the
    first evaluation: training shares these weights, an evaluation would use another kernel than training, and layers
    narrower than a block of 64 fail."""
    layers: Iterator[Any] = model.modules()
    for layer in layers:
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def _memory() -> int | None:
    """Bytes of this machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Make a TaskError of one line of what the libraries raise for a file of the user's."""
    try:
        yield
    except TaskError:
        raise
    except Exception as error:  # by kind of file and model: a dozen, down to a division by zero heads
        raise TaskError(f"{what}: {' '.join(str(error).split())[:MAX_REASON_CHARS]}") from error


@contextmanager
def peft_quiet() -> Iterator[None]:
    """Around calls of peft: it asks transformers for a property by its old name, and would be warned of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        yield
