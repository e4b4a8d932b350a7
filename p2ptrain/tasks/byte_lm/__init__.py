"""A byte-level language model: any file or folder is a corpus, and 256 bytes are the vocabulary."""

from p2ptrain.tasks.byte_lm.gpt import SIZES, ByteGPT
from p2ptrain.tasks.byte_lm.task import ByteLM

__all__ = ["SIZES", "ByteGPT", "ByteLM"]
