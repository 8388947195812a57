"""The dims of a transformer, how many parameters they come to, and the sizes that have names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TransformerConfig:
    """The dims of a decoder-only transformer.

    Attributes:
        vocabulary: number of tokens.
        width: features of the residual stream.
        num_layers: layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; each serves `num_heads / num_kv_heads` query heads.
        head_dim: features of a head.
        hidden: features of the feed-forward layers inside.
        tied: whether the head that gives logits is the embedding, transposed.
        rotary_base: the longest wavelength of the rotary embedding is nearly 2π times this many tokens.
        dtype: what it computes in; parameters are float32.
        remat: compute each layer again in the backward pass, so that only its input is kept.

    Raises:
        ValueError: the heads cannot share key and value heads, or cannot be rotated in pairs.

    Example:
        >>> SIZES["3b"].num_params
        3606752256
    """

    vocabulary: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    tied: bool = False
    rotary_base: float = 10_000.0
    dtype: Dtype = "bfloat16"
    remat: bool = False

    def __post_init__(self) -> None:
        problems = []
        if self.num_heads % self.num_kv_heads:
            problems.append(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key and value heads evenly: "
                "make num_heads a multiple of num_kv_heads"
            )
        if self.head_dim % 2:
            problems.append(f"head_dim={self.head_dim} is odd, and rotary embeddings turn pairs: make it even")
        if self.dtype not in get_args(Dtype):
            problems.append(f"dtype={self.dtype!r} is not one of {', '.join(get_args(Dtype))}")
        if problems:
            raise ValueError("\n  ".join(["the transformer cannot be built:", *problems]))

    @property
    def num_params(self) -> int:
        """Parameters, exactly."""
        embedding = self.vocabulary * self.width
        return embedding * (1 if self.tied else 2) + self.num_layers * self.num_layer_params + self.width

    @property
    def num_layer_params(self) -> int:
        """Parameters of one layer."""
        attention = 2 * self.width * (self.num_heads + self.num_kv_heads) * self.head_dim
        return attention + 3 * self.width * self.hidden + 2 * self.width


BYTES = 256
SUBWORDS = 32_768
LLAMA_3 = 128_256

SIZES: Mapping[str, TransformerConfig] = {
    "tiny": TransformerConfig(BYTES, 128, 4, 8, 4, 16, 512, dtype="float32"),
    "small": TransformerConfig(BYTES, 384, 6, 8, 4, 48, 1024, dtype="float32"),
    "100m": TransformerConfig(SUBWORDS, 1024, 8, 16, 8, 64, 2048, tied=True),
    "1b": TransformerConfig(LLAMA_3, 2048, 16, 32, 8, 64, 8192, tied=True, rotary_base=500_000.0),
    "3b": TransformerConfig(LLAMA_3, 3072, 28, 24, 8, 128, 8192, rotary_base=500_000.0),
    "8b": TransformerConfig(LLAMA_3, 4096, 32, 32, 8, 128, 14_336, rotary_base=500_000.0),
    "70b": TransformerConfig(LLAMA_3, 8192, 80, 64, 8, 128, 28_672, rotary_base=500_000.0),
}
"""From a million parameters to 70 billion.

The two that train on a laptop see bytes. The larger have the vocabularies of their kind, so that the embedding and the
head weigh, in memory and in traffic, what they weigh in practice. From 1b on the dims are those of Llama 3 (Grattafiori
et al., arXiv:2407.21783) and 3.2; 3b with a head of its own, as in 8b and 70b.
"""
