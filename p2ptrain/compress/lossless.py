"""Lossless: what a codec's bytes have to spare, squeezed out, kept only where it pays: `lossless+topk`.

    payload = form     1 byte: 0 as it is, 1 deflated, 2 topk's plain form (topk_deltas.py) deflated
              bytes    of the inner payload, or a raw DEFLATE stream (RFC 1951) that ends with the payload

The encoder uses Huffman codes only: what codecs write has skewed bytes but no repetitions, for which a search costs
time and finds nothing. It pays for places, halves and bytes, hardly for 2 bits, never for 1 (a Gaussian's; a model's
differences are within 0.04 of the ratios):

| inner                      | bits before | after | ratio | ns a parameter more, to encode and to decode |
|----------------------------|-------------|-------|-------|----------------------------------------------|
| topk, ratio 1/10           | 2.01        | 1.15  | 0.57  | 3, 1                                         |
| topk, 1/64, 2-bit values   | 0.229       | 0.155 | 0.68  | 1, 1                                         |
| bf16                       | 16          | 12.4  | 0.78  | 16, 7                                        |
| int8                       | 8.03        | 7.34  | 0.91  | 10, 4                                        |
| none, fp16, powersgd       | 32, 16, ..  |       | 0.92  | 40, 13; 15, 7; 0, 0                          |
| int4                       | 4.13        | 3.89  | 0.94  | 4, 2                                         |
| q2                         | 2.03        | 1.96  | 0.97  | 5, 1                                         |
| sign1                      | 1.03        | 1.03  | 1.00  | 1, 0                                         |

Inflating is bounded: no inner payload is longer than `bound(numel)`, and nothing beyond that is ever made.
"""

import zlib

import torch

from p2ptrain.compress import topk_deltas
from p2ptrain.compress.base import Compressor, PayloadError
from p2ptrain.compress.stage import Stage, cut_header
from p2ptrain.compress.topk import TopK

AS_IS, DEFLATED, GAPS = range(3)
RAW_WINDOW = -15
"""zlib's sign for a stream with no header and no checksum: links and blobs have digests."""
MEMORY = 9
"""zlib's largest: a Huffman table for each 32 Ki bytes, a quarter of which it costs at the default."""
HEAD_BYTES = 64
"""More than the heads of all codecs that may stand within together: what a payload's gamma is read from."""
SLACK_BYTES = 4096
"""Headers and scales of tiny vectors; a payload that is longer than fp32 and this travels as it is."""


def bound(numel: int) -> int:
    """More bytes than any payload worth squeezing has."""
    return 4 * numel + SLACK_BYTES


class Lossless(Stage):
    """An entropy coder after the codec within, which is topk unless the name says otherwise.

    Its place is next to topk, whose gaps it knows: `demo+lossless+topk`, not `lossless+demo+topk`.

    Source: DEFLATE's Huffman codes; gaps for places as in inverted indexes (run lengths).
    Guarantee: the codec's within, bit for bit.
    Cost: 1 byte a payload where it does not pay. zlib from the standard library; zstandard's Huffman coder is five to
    ten times as fast at the same size, but no payload is so large that it would be felt beside the training of a round.
    """

    stage = "lossless"

    def __init__(self, inner: Compressor | None = None) -> None:
        super().__init__(inner or TopK())

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        return self.squeezed(self.inner.encode(x_d), x_d.numel())

    def squeezed(self, payload: bytes, numel: int) -> bytes:
        """Return the payload of the vector (numel,) of which the codec within has made this one."""
        form, pieces = DEFLATED, [payload]
        if isinstance(self.inner, TopK):
            form, pieces = GAPS, topk_deltas.to_plain(payload, numel)
        squeezed = _deflate(pieces)
        if len(squeezed) >= len(payload) or sum(map(len, pieces)) >= bound(numel):
            return bytes([AS_IS]) + payload
        return bytes([form]) + squeezed

    def within(self, payload: bytes | memoryview) -> bytes | memoryview:
        """Return the beginning of the inner payload, inflated: all heads fit into it, and topk's plain form has the
        same one."""
        form, rest = cut_header(payload, 1)
        return rest if form[0] == AS_IS else zlib.decompressobj(RAW_WINDOW).decompress(rest, HEAD_BYTES)

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        return self.inner.decode(self.inflated(payload, numel), numel)

    def inflated(self, payload: bytes | memoryview, numel: int) -> bytes | memoryview:
        """Return the payload of the codec within. Raises PayloadError."""
        form, rest = cut_header(payload, 1)
        if form[0] == AS_IS:
            return rest
        if form[0] == DEFLATED:
            return _inflate(rest, bound(numel))
        if form[0] == GAPS and isinstance(self.inner, TopK):
            return topk_deltas.from_plain(_inflate(rest, bound(numel)), numel)
        raise PayloadError("malformed", f"a form {form[0]} of {self.inner.name}")


def _deflate(pieces: list[bytes]) -> bytes:
    """One stream, in which each piece begins with a Huffman table of its own."""
    coder = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, RAW_WINDOW, MEMORY, zlib.Z_HUFFMAN_ONLY)
    stream = [part for piece in pieces if piece for part in (coder.compress(piece), coder.flush(zlib.Z_BLOCK))]
    return b"".join([*stream, coder.flush()])


def _inflate(stream: memoryview, most: int) -> bytes:
    """The whole of a stream that gives `most` bytes at most. PayloadError otherwise."""
    decoder = zlib.decompressobj(RAW_WINDOW)
    try:
        plain = decoder.decompress(stream, most)
    except zlib.error as error:
        raise PayloadError("malformed", f"no deflated bytes: {error}") from error
    if not decoder.eof or decoder.unused_data:
        raise PayloadError("wrong_shape", f"a stream that does not end with the payload, or of more than {most} bytes")
    return plain
