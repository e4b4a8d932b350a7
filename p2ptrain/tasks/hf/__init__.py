"""Models of Hugging Face as tasks, with no code of the user's: `--task hf-lm` and `--task hf-vision` (extra `hf`).

Nothing of transformers is imported here: the modules below import it when a task is made.
"""

from p2ptrain.tasks.hf.base_model import BaseModel, open_base
from p2ptrain.tasks.hf.language_model import HFLanguageModel
from p2ptrain.tasks.hf.lora import LoraOptions, ProductGap, adapter_size, product_gap
from p2ptrain.tasks.hf.vision import HFVision

__all__ = [
    "BaseModel",
    "HFLanguageModel",
    "HFVision",
    "LoraOptions",
    "ProductGap",
    "adapter_size",
    "open_base",
    "product_gap",
]
