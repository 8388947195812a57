"""The names that Hugging Face's models give their weights, as rules for `outlay.read_weights`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.norm import EPSILON

_PROJECTIONS = {
    "self_attn.q_proj": ("attention.query", (1, 0, 0)),
    "self_attn.k_proj": ("attention.key", (1, 0, 0)),
    "self_attn.v_proj": ("attention.value", (1, 0, 0)),
    "self_attn.o_proj": ("attention.output", (1, 1, 0)),
    "mlp.gate_proj": ("feed_forward.gate", (1, 0)),
    "mlp.up_proj": ("feed_forward.up", (1, 0)),
    "mlp.down_proj": ("feed_forward.down", (1, 0)),
}
"""PyTorch's kernels are (outputs, inputs); a dim of ours that stands twice is heads and their features."""


def llama_names(
    config: TransformerConfig, root: str = "params"
) -> list[tuple[str, str | None] | tuple[str, str, tuple[int, ...]]]:
    """Rules for a model of Llama's kind: Llama 2 and 3, Mistral, TinyLlama, SmolLM.

    Args:
        config: the model.
        root: what holds its parameters in the state.

    Raises:
        ValueError: the model is of another kind: it has biases, learned positions, or no gate.

    Example:
        >>> from outlay.models.transformer.published import MODELS
        >>> llama_names(MODELS["llama3-8b"].config)[0]
        ('model.embed_tokens.weight', 'params.embedding.embedding')
    """
    if config.biases or config.positions != "rotary" or config.norm != "rms" or not config.gated:
        raise ValueError("it is not of Llama's kind: rotary positions, RMS norms, a gate and no biases")
    layer = f"{root}.layers"
    return [
        ("model.embed_tokens.weight", f"{root}.embedding.embedding"),
        *(
            (f"model.layers.*.{theirs}.weight", f"{layer}.{ours}.kernel", dims)
            for theirs, (ours, dims) in _PROJECTIONS.items()
        ),
        ("model.layers.*.input_layernorm.weight", f"{layer}.attention_norm.scale"),
        ("model.layers.*.post_attention_layernorm.weight", f"{layer}.feed_forward_norm.scale"),
        ("model.norm.weight", f"{root}.norm.scale"),
        *([] if config.tied else [("lm_head.weight", f"{root}.head.kernel", (1, 0))]),
    ]


def differences(theirs: Mapping[str, Any], config: TransformerConfig) -> list[str]:
    """What the `config.json` of a model says that a config of ours does not, in words.

    Args:
        theirs: the file, read.
        config: the model that the weights are meant for.

    Example:
        >>> from outlay.models.transformer.published import MODELS
        >>> differences({"hidden_size": 2048, "rms_norm_eps": 1e-05}, MODELS["llama3-8b"].config)
        ['hidden_size is 2048 there, width is 4096 here']
    """
    ours = {
        "vocab_size": ("vocabulary", config.vocabulary),
        "hidden_size": ("width", config.width),
        "num_hidden_layers": ("layers", config.num_layers),
        "num_attention_heads": ("heads", config.num_heads),
        "num_key_value_heads": ("kv_heads", config.num_kv_heads),
        "head_dim": ("head_dim", config.head_dim),
        "intermediate_size": ("hidden", config.hidden),
        "tie_word_embeddings": ("tied", config.tied),
        "rope_theta": ("rotary_base", config.rotary_base),
        "rms_norm_eps": ("the norms' epsilon", EPSILON),
        "hidden_act": ("activation", config.activation),
        "rope_scaling": ("scaling of rotary positions", None),
        "rope_type": ("kind of rotary positions", "default"),
        "sliding_window": ("window", config.window),
    }
    theirs = {**theirs, **(theirs.get("rope_parameters") or {})}  # where newer files have what is about positions
    return [
        f"{name} is {theirs[name]} there, {here} is {value} here"
        for name, (here, value) in ours.items()
        if name in theirs and theirs[name] != value and not (name in _MAY_BE_NULL and theirs[name] is None)
    ]


_MAY_BE_NULL = ("head_dim", "num_key_value_heads")
