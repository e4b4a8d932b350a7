"""Compressors: the byte forms in which a difference of two models travels. `base.py` has their contract.

| member   | bits a parameter   | what it keeps                                                      |
|----------|--------------------|--------------------------------------------------------------------|
| none     | 32                 | everything                                                         |
| fp16     | 16                 | half precision                                                     |
| bf16     | 16                 | half the bits, fp32's range                                        |
| int8     | 8.03               | 255 steps between +-max of each 1,024                              |
| int4     | 4.13               | sixteen levels between +-max of each 256                           |
| q2       | 2.03               | four levels, the best four for a Gaussian                          |
| sign1    | 1.03               | the sign, and one size for each 1,024                              |
| topk     | 2.01               | the largest tenth of each 4,096, in 8 bits each; options: fewer    |
| powersgd | 0.09 of 2 million  | a product of two thin matrices; falls as one over the root of d    |
| adaptive | 8 to 0.16          | the finest of int8 .. topk that a budget allows                    |

A stage works on what another one encodes; alone it takes the default in brackets. Its bits are those of what is within:

| stage    | what it does                                                                                  |
|----------|-----------------------------------------------------------------------------------------------|
| rotated  | (q2) spreads each block evenly, so that quantizers meet a Gaussian whatever the vector        |
| demo     | (topk at 0.51 bits) cosine transform: gathers what is smooth in few values                    |
| randomk  | (int8, 0.50 bits) one of each 16 values, at random, by a seed that travels                    |
| lossless | (topk, 1.15 bits) squeezes the payload, where that pays                                       |
| warmup   | (sign1) sends the first payloads whole                                                        |

    >>> import torch
    >>> from p2ptrain import compress
    >>> codec = compress.get("rotated+sign1", block=4096)
    >>> payload = codec.encode(torch.ones(100_000))
    >>> len(payload)
    12898
    >>> compress.get("rotated+sign1").decode(payload, 100_000).shape  # needs no option of the sender's
    torch.Size([100000])
"""

from p2ptrain.compress.adaptive import Adaptive
from p2ptrain.compress.base import Compressor, PayloadError, Stateful, gamma_for, gamma_of
from p2ptrain.compress.compose_codecs import CodecCompositions
from p2ptrain.compress.demo import Demo
from p2ptrain.compress.dense import Dense
from p2ptrain.compress.feedback import ErrorFeedback
from p2ptrain.compress.float16 import Bf16, Fp16
from p2ptrain.compress.int4 import Int4
from p2ptrain.compress.int8 import Int8
from p2ptrain.compress.lossless import Lossless
from p2ptrain.compress.powersgd import PowerSGD
from p2ptrain.compress.q2 import LloydMax2Bit
from p2ptrain.compress.randomk import RandomK
from p2ptrain.compress.rotated import Rotated
from p2ptrain.compress.sign1 import ScaledSign
from p2ptrain.compress.topk import TopK
from p2ptrain.compress.warmup import Warmup

__all__ = [
    "COMPRESSORS",
    "Compressor",
    "ErrorFeedback",
    "PayloadError",
    "Stateful",
    "check",
    "gamma_for",
    "gamma_of",
    "get",
    "names",
]

COMPRESSORS = CodecCompositions("compressors")
for _base in (Dense, Fp16, Bf16, Int8, Int4, LloydMax2Bit, ScaledSign, TopK, PowerSGD, Adaptive):
    COMPRESSORS.register(_base.name)(_base)
for _stage in (Demo, Lossless, RandomK, Rotated, Warmup):
    COMPRESSORS.register(_stage.stage)(_stage)


def get(name: str, **options: object) -> Compressor:
    """Return the compressor `name`, a member or a composition: `q2`, `lossless+topk`. compose_codecs.py has the
    grammar.

    Raises UnknownMemberError (a ValueError) that lists the names there are, and BadOptionError that lists the options.
    """
    return COMPRESSORS.get(name, **options)


def check(name: str) -> None:
    """UnknownMemberError unless `get` knows `name`; nothing is built."""
    COMPRESSORS.check(name)


def names() -> list[str]:
    """Every member there is, plug-ins included, sorted. Stages among them may be composed."""
    return COMPRESSORS.names()
