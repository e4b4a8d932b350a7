"""Text to token ids and back, with the tokens of a conversation marked that are trained on.

`bytes` is ByT5's vocabulary without its extra ids: 3 special tokens and 256 bytes. It needs no file and fits any text,
and encoding is a copy: the library's own takes a microsecond a byte.
"""

import copy
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.hf.extras import require
from p2ptrain.tasks.hf.hub import HubName, folder_of, hub_name
from p2ptrain.tasks.hf.sources import Example, Message

BYTES: Final = "bytes"
BYTE_OFFSET: Final = 3
"""ByT5's ids 0, 1 and 2 are padding, end and unknown (2105.13626)."""

Ids = npt.NDArray[np.uint32]
Marks = npt.NDArray[np.bool_]

TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")

FETCHED: Final = (*TOKENIZER_FILES, "vocab.*", "merges.txt", "*.jinja", "special_tokens_map.json")
"""Of a tokenizer of the hub."""

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>\\n' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML, for tokenizers that bring no template of their own. What the assistant says is marked."""

_LONE: Final = re.compile("[\ud800-\udfff]")

_GENERATION: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An example as tokens: ids uint32 (n,), which of them are to be predicted, bool (n,), and how many bytes of UTF-8
    they stand for."""

    ids: Ids
    trained: Marks
    text_bytes: int


class TextEncoder:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: Any, chat_template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template or _own_template(tokenizer) or CHAT_TEMPLATE
        self.is_bytes = type(tokenizer).__name__ == "ByT5Tokenizer"
        if not (self.is_bytes or tokenizer.is_fast):
            kind = type(tokenizer).__name__
            raise TaskError(f"the tokenizer {kind} is a slow one: save a fast one (tokenizer.json), or use bytes")
        self.end = tokenizer.eos_token_id
        """The id that ends a document; None where the vocabulary has none."""

    @property
    def vocabulary(self) -> int:
        """How many ids there are: the number of logits that a model needs."""
        return len(self.tokenizer)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes over the vocabulary: equal where ids mean the same."""
        vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
        return hashlib.blake2b(json.dumps(vocabulary).encode(), digest_size=32).digest()

    @cached_property
    def rules_digest(self) -> bytes:
        """32 bytes over all that makes tokens of a text: two tokenizers of one vocabulary may cut it otherwise, and end
        a document with another id."""
        rules = BYTES if self.is_bytes else self.tokenizer.backend_tokenizer.to_str()
        said = (self.chat_template, sorted(self.tokenizer.special_tokens_map.items()), rules)
        return hashlib.blake2b(json.dumps(said, default=str).encode(), digest_size=32).digest()

    @property
    def marks_assistant(self) -> bool:
        """Whether the chat template says which tokens are the assistant's. Without, all tokens are trained on."""
        return _GENERATION.search(self.chat_template) is not None

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Return the examples as tokens. TaskError for messages that the chat template refuses."""
        texts = [example.text for example in examples if not example.messages]
        documents = iter(self._documents(texts))
        return [self._chat(each.messages) if each.messages else next(documents) for each in examples]

    def prompt(self, text: str) -> list[int]:
        """Return the ids of the beginning of a text; never none, so that a model has something to go on from."""
        ids = self._ids([text])[0].tolist() if text else []
        begin = self.tokenizer.bos_token_id
        return ids or [self.end if begin is None else begin]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens left out. Bytes that are no UTF-8 become U+FFFD."""
        if self.is_bytes:
            count = BYTE_OFFSET + 256
            return bytes(each - BYTE_OFFSET for each in ids if BYTE_OFFSET <= each < count).decode(errors="replace")
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def save(self, folder: Path) -> None:
        """Write the tokenizer with its chat template, as `AutoTokenizer.from_pretrained` opens it."""
        tokenizer = copy.copy(self.tokenizer)
        tokenizer.chat_template = self.chat_template
        tokenizer.save_pretrained(folder)

    def _documents(self, texts: list[str]) -> list[Encoded]:
        end = np.array([] if self.end is None else [self.end], np.uint32)
        return [
            Encoded(
                ids=np.concatenate([ids, end]),
                trained=np.ones(len(ids) + len(end), np.bool_),
                text_bytes=len(_bytes_of(text)),
            )
            for text, ids in zip(texts, self._ids(texts), strict=True)
        ]

    def _ids(self, texts: list[str]) -> list[Ids]:
        if self.is_bytes:
            return [_bytes_of(text).astype(np.uint32) + BYTE_OFFSET for text in texts]
        if not texts:
            return []
        plain = [_encodable(text) for text in texts]
        found = self.tokenizer(plain, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return [np.array(ids, np.uint32) for ids in found]

    def _chat(self, messages: Sequence[Message]) -> Encoded:
        text, spans = self._rendered(messages)
        size = len(_bytes_of(text))
        text = text if self.is_bytes else _encodable(text)
        if self.is_bytes:
            ids = self._ids([text])[0]
            # Where each byte's character stands in the text.
            places = np.repeat(np.arange(len(text)), [len(_bytes_of(each)) for each in text])
            ends = places + 1
        else:
            found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            ids = np.array(found["input_ids"], np.uint32)
            places, ends = np.array(found["offset_mapping"], np.int64).reshape(-1, 2).T
        if not self.marks_assistant:
            return Encoded(ids=ids, trained=np.ones(len(ids), np.bool_), text_bytes=size)
        trained = np.zeros(len(ids), np.bool_)
        for begin, end in spans:
            trained |= (places < end) & (ends > begin)
        return Encoded(ids=ids, trained=trained, text_bytes=size)

    def _rendered(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation, and where in it the assistant speaks."""
        chat = require("transformers.utils.chat_template_utils")
        specials = {name: str(token) for name, token in self.tokenizer.special_tokens_map.items()}
        try:
            texts, spans = chat.render_jinja_template(
                [list(messages)],
                chat_template=self.chat_template,
                return_assistant_tokens_mask=True,
                **specials,
            )
        except Exception as error:  # jinja's own, a TypeError of a template's filter, or what the template raises
            raise TaskError(f"the chat template refuses a conversation: {error}") from error
        return texts[0], spans[0]


def open_encoder(tokenizer: str | None, model_dir: Path | None, chat_template: str | None) -> TextEncoder:
    """Return the tokenizer of that name (`bytes`), folder or file; by default the model folder's, and `bytes` where
    that has none. `chat_template` is a file. TaskError where one cannot be read."""
    template = None if chat_template is None else _template_in(Path(chat_template))
    if tokenizer is None and model_dir is not None and any((model_dir / name).is_file() for name in TOKENIZER_FILES):
        tokenizer = str(model_dir)
    if tokenizer is None or tokenizer == BYTES:
        return TextEncoder(require("transformers").ByT5Tokenizer(extra_ids=0), template)
    name = hub_name(tokenizer)
    return TextEncoder(_opened(Path(tokenizer).expanduser() if name is None else _of_hub(name)), template)


def _of_hub(name: HubName) -> Path:
    return folder_of(
        name, FETCHED, lambda folder: any((folder / each).is_file() for each in TOKENIZER_FILES), what="a tokenizer"
    )


def _opened(path: Path) -> Any:
    library = require("transformers")
    try:
        if path.is_file():
            return library.PreTrainedTokenizerFast(tokenizer_file=str(path))
        if path.is_dir():
            return library.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the libraries raise a dozen kinds, down to plain Exception from Rust
        raise TaskError(f"the tokenizer in {path} cannot be read: {' '.join(str(error).split())[:300]}") from error
    raise TaskError(f"there is no tokenizer {path}: give a folder, a tokenizer.json, or {BYTES}")


def _own_template(tokenizer: Any) -> str | None:
    found = tokenizer.chat_template
    if isinstance(found, dict):
        found = found.get("default")
    return found if isinstance(found, str) else None


def _template_in(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"the chat template {path} cannot be read: {error}") from error


def _encodable(text: str) -> str:
    """With U+FFFD for each half of a surrogate pair, which JSON can hold and no tokenizer in Rust takes."""
    return text if text.isascii() else _LONE.sub("\N{REPLACEMENT CHARACTER}", text)


def _bytes_of(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
