"""Plans that the tests of planning share."""

from typing import Any

from node.config.schema import from_raw
from node.planning.accelerators import accelerator
from node.planning.forecast import PlanRequest
from node.planning.model_shape import shape_of_size
from node.planning.round_timing import PlannedLink

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA_8B = LLAMA | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
LLAMA_70B = LLAMA | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
PARAMETERS = {"8B": 8_030_261_248, "70B": 70_553_706_496}


def request(
    *,
    parameters: float = 125e6,
    nodes: int = 8,
    up: float = 20e6,
    down: float | None = None,
    rtt_s: float = 0.08,
    device: str = "rtx4090",
    length: int = 512,
    tokens: float = 2.5e9,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> PlanRequest:
    """A plan of a swarm at home, unless it says otherwise."""
    return PlanRequest(
        shape=shape_of_size(parameters),
        length=length,
        config=from_raw(settings or {}),
        nodes=nodes,
        link=PlannedLink(up_bits_s=up, down_bits_s=5 * up if down is None else down, rtt_s=rtt_s),
        device=accelerator(device),
        tokens=tokens,
        **more,
    )
