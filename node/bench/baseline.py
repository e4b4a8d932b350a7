"""The plain way to do what a codec or an aggregator does: a few lines of torch over the whole vector.

They are what a kernel is there to beat: right, but with several passes over memory, and temporaries as large as the
input. Their results are the real ones' up to rounding; their bytes need not be.
"""

from collections.abc import Callable

import torch

BLOCK = 1024
Encoded = tuple[torch.Tensor, ...]
Codec = tuple[Callable[[torch.Tensor], Encoded], Callable[[Encoded, int], torch.Tensor]]


def codec(name: str) -> Codec | None:
    """Return encode and decode of the compressor `name` in plain torch; None where nobody would write it plainly."""
    return _CODECS.get(name)


def aggregator(name: str, f: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the rule `name` for f liars in plain torch, (n, d) to (d,); None where nobody would write it plainly."""
    rule = _RULES.get(name)
    return None if rule is None else lambda x_nd: rule(x_nd, f)


def _blocks(x_d: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    return torch.nn.functional.pad(x_d, (0, -x_d.numel() % block)).view(-1, block)


def _encode_steps(largest: int, block: int) -> Callable[[torch.Tensor], Encoded]:
    def encode(x_d: torch.Tensor) -> Encoded:
        x_rw = _blocks(x_d, block)
        scale_r1 = x_rw.abs().amax(dim=1, keepdim=True) / largest
        return scale_r1, (x_rw / scale_r1.clamp(min=torch.finfo(torch.float32).tiny)).round().to(torch.int8)

    return encode


def _decode_scaled(encoded: Encoded, numel: int) -> torch.Tensor:
    scale_r1, step_rw = encoded
    return (step_rw.float() * scale_r1).view(-1)[:numel]


def _encode_sign(x_d: torch.Tensor) -> Encoded:
    x_rw = _blocks(x_d)
    bit_rw = (x_rw >= 0).view(-1, 8).to(torch.uint8)
    weight = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=x_d.device)
    return x_rw.abs().mean(dim=1, keepdim=True), (bit_rw * weight).sum(dim=1, dtype=torch.uint8)


def _decode_sign(encoded: Encoded, numel: int) -> torch.Tensor:
    scale_r1, byte_b = encoded
    bit_b8 = byte_b[:, None] >> torch.arange(8, dtype=torch.uint8, device=byte_b.device) & 1
    sign_rw = (bit_b8.float() * 2 - 1).view(scale_r1.shape[0], -1)
    return (sign_rw * scale_r1).view(-1)[:numel]


_LEVELS = torch.tensor([-1.510, -0.4528, 0.4528, 1.510])
_EDGES = torch.tensor([-0.9816, 0.0, 0.9816])


def _encode_q2(x_d: torch.Tensor) -> Encoded:
    x_rw = _blocks(x_d)
    scale_r1 = x_rw.square().mean(dim=1, keepdim=True).sqrt()
    code_b4 = torch.bucketize(x_rw / scale_r1.clamp(min=torch.finfo(torch.float32).tiny), _EDGES.to(x_d.device)).view(
        -1, 4
    )
    weight = torch.tensor([1, 4, 16, 64], device=x_d.device)
    return scale_r1, (code_b4 * weight).sum(dim=1).to(torch.uint8)


def _decode_q2(encoded: Encoded, numel: int) -> torch.Tensor:
    scale_r1, byte_b = encoded
    code_b4 = byte_b[:, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=byte_b.device) & 3
    return (_LEVELS.to(byte_b.device)[code_b4.long()].view(scale_r1.shape[0], -1) * scale_r1).view(-1)[:numel]


def _encode_topk(x_d: torch.Tensor) -> Encoded:
    kept = torch.topk(x_d.abs(), max(1, x_d.numel() // 10)).indices
    return kept, x_d[kept]


def _decode_topk(encoded: Encoded, numel: int) -> torch.Tensor:
    kept, value_k = encoded
    return torch.zeros(numel, device=value_k.device).index_put_((kept,), value_k)


_CODECS: dict[str, Codec] = {
    "none": (lambda x_d: (x_d.clone(),), lambda encoded, numel: encoded[0].clone()),
    "fp16": (lambda x_d: (x_d.half(),), lambda encoded, numel: encoded[0].float()),
    "bf16": (lambda x_d: (x_d.bfloat16(),), lambda encoded, numel: encoded[0].float()),
    "int8": (_encode_steps(127, BLOCK), _decode_scaled),
    "int4": (_encode_steps(7, BLOCK // 4), _decode_scaled),
    "q2": (_encode_q2, _decode_q2),
    "sign1": (_encode_sign, _decode_sign),
    "topk": (_encode_topk, _decode_topk),
}


def _trimmed(x_nd: torch.Tensor, f: int) -> torch.Tensor:
    return x_nd.sort(dim=0).values[f : x_nd.shape[0] - f].mean(dim=0)


def _median(x_nd: torch.Tensor, f: int) -> torch.Tensor:
    n = x_nd.shape[0]
    return x_nd.sort(dim=0).values[(n - 1) // 2 : n // 2 + 1].mean(dim=0)


def _meamed(x_nd: torch.Tensor, f: int) -> torch.Tensor:
    nearest = (x_nd - _median(x_nd, f)).abs().argsort(dim=0)[: x_nd.shape[0] - f]
    return x_nd.gather(0, nearest).mean(dim=0)


def _scores(x_nd: torch.Tensor, f: int) -> torch.Tensor:
    square_nn = torch.cdist(x_nd, x_nd).square()
    return square_nn.sort(dim=1).values[:, 1 : x_nd.shape[0] - f - 1].sum(dim=1)


def _krum(x_nd: torch.Tensor, f: int) -> torch.Tensor:
    return x_nd[_scores(x_nd, f).argmin()].clone()


def _multi_krum(x_nd: torch.Tensor, f: int) -> torch.Tensor:
    return x_nd[_scores(x_nd, f).argsort()[: x_nd.shape[0] - f]].mean(dim=0)


def _nearest_means(x_nd: torch.Tensor, f: int) -> torch.Tensor:
    nearest = torch.cdist(x_nd, x_nd).argsort(dim=1)[:, : x_nd.shape[0] - f]
    return torch.stack([x_nd[chosen].mean(dim=0) for chosen in nearest])


def _geometric_median(x_nd: torch.Tensor, f: int) -> torch.Tensor:
    z_d = x_nd.mean(dim=0)
    for _ in range(8):
        weight_n1 = 1 / (x_nd - z_d).norm(dim=1, keepdim=True).clamp(min=0.1)
        z_d = (weight_n1 * x_nd).sum(dim=0) / weight_n1.sum()
    return z_d


_RULES: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "mean": lambda x_nd, f: x_nd.sum(dim=0) / x_nd.shape[0],
    "trimmed_mean": _trimmed,
    "median": _median,
    "meamed": _meamed,
    "krum": _krum,
    "multi_krum": _multi_krum,
    "geometric_median": _geometric_median,
    "nnm+trimmed_mean": lambda x_nd, f: _trimmed(_nearest_means(x_nd, f), f),
    "nnm+mean": lambda x_nd, f: _nearest_means(x_nd, f).mean(dim=0),
}
