"""One name for a parameter, whatever its model is wrapped in.

DDP, FSDP, `torch.compile`, activation checkpointing, Opacus and PEFT each put names of their own into those of the
parameters. Members of one swarm may wrap the same model in different ways, and must agree on its names.
"""

import re
from typing import Final

WRAPPERS: Final = frozenset(
    {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_module", "_forward_module"}
)
"""Names that wrappers put in: DDP and DataParallel, torch.compile, FSDP, activation checkpointing, Opacus, Lightning's
strategies."""

_PEFT_BASE: Final = re.compile(r"^base_model\.model\.")
"""What `peft.get_peft_model` puts before all names, and `inject_adapter_in_model` does not."""

_ADAPTER: Final = re.compile(
    r"\.((?:lora|vera|ia3|oft|hada|lokr|boft|fourierft)_\w+|modules_to_save|trainable_tokens_\w+)\.([^.]+)(?=\.|$)"
)
"""PEFT's parameters: kind, then the adapter's name, which each user chooses."""


def canonical(name: str) -> str:
    """Return a parameter's name without what wrappers and adapters' names put into it.

    >>> canonical("module._orig_mod.blocks.0._checkpoint_wrapped_module.weight")
    'blocks.0.weight'
    >>> canonical("base_model.model.q_proj.lora_A.default.weight")
    'q_proj.lora_A.weight'
    """
    bare = ".".join(part for part in name.split(".") if part not in WRAPPERS)
    return _ADAPTER.sub(r".\1", _PEFT_BASE.sub("", bare))
