"""The name of a parameter as every member has it, whatever a framework has put around the model.

peft wraps a model as `base_model.model` and puts a name of its user's choice into those of the adapters
(`q_proj.lora_A.default.weight`): members that chose other names train the same model.
"""

import re
from typing import Final

_WRAPPED: Final = "base_model.model."
_ADAPTER: Final = re.compile(r"\.(lora_[AB]|lora_magnitude_vector|modules_to_save)\.[^.]+\.")
_EMBEDDED: Final = re.compile(r"\.(lora_embedding_[AB])\.[^.]+$")


def canonical_name(name: str) -> str:
    """Return the name without peft's wrapper and the adapter's name. Names of other models come back as they are."""
    adapted = _EMBEDDED.sub(r".\1", _ADAPTER.sub(r".\1.", name))
    return adapted.removeprefix(_WRAPPED)
