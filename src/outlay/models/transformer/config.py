"""What a transformer is made of: its dims, its variants, its dtypes, what it keeps; and how many parameters it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from outlay.core.suggest import did_you_mean

Dtype = Literal["float32", "bfloat16"]
Positions = Literal["rotary", "learned", "none"]
NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "relu"]

REMATS = ("none", "full", "attention", "products")
"""What a layer computes again in the backward pass, besides names of `KEPT`: see `TransformerConfig.remat`."""

KEPT = ("branch_input", "queries", "keys", "values", "attention", "branch_output", "residual", "gate", "up")
"""The values of a layer that `remat` can name to be kept."""


@dataclass(frozen=True)
class TransformerConfig:
    """A decoder-only transformer.

    Attributes:
        vocabulary: number of tokens.
        width: features of the residual stream.
        num_layers: layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; each serves `num_heads / num_kv_heads` query heads.
        head_dim: features of a head.
        hidden: features of the feed-forward layers inside.
        tied: whether the head that gives logits is the embedding, transposed.
        gated: whether the feed-forward layer has a gate beside `up`.
        activation: of the gate, or of the way up where there is none.
        positions: how a token knows its position: queries and keys are rotated, or each position has a learned vector.
        num_positions: how many positions have a learned vector; the longest sequence then.
        norm: root mean square, or layer normalisation, which takes the mean off first.
        biases: whether projections inside layers and layer norms have biases.
        window: how many tokens a query sees, itself among them; all before it if None.
        rotary_base: the longest wavelength of the rotary embedding is nearly 2π times this many tokens.
        param_dtype: what parameters are.
        dtype: what it computes in; norms, softmax and loss are float32 inside.
        remat: what a layer computes again in the backward pass, to keep less. `none`: norms, rotations and activations
            only, which are cheap; `attention`: the heads' mixing too; `products`: all but matrix products and the
            heads' mixing; `full`: all of the layer. Or names of values that are kept, all else being computed again:
            some of `KEPT`, as in `queries,keys,values`.
        loss_chunks: the loss takes a sequence in this many pieces, so that only one piece's logits are there at a time.
        adapter_rank: features of the low-rank adapters beside the projections of a layer; 0 for none.
        is_int8: with adapters, the projections' own kernels are 8-bit integers.

    Raises:
        ValueError: parts do not fit together; all that do not are listed.

    Example:
        >>> config = TransformerConfig(
        ...     1000, width=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, hidden=256)
        >>> config.num_params
        251200
    """

    vocabulary: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    tied: bool = False
    gated: bool = True
    activation: Activation = "silu"
    positions: Positions = "rotary"
    num_positions: int = 2048
    norm: NormKind = "rms"
    biases: bool = False
    window: int | None = None
    rotary_base: float = 10_000.0
    param_dtype: Dtype = "float32"
    dtype: Dtype = "bfloat16"
    remat: str = "none"
    loss_chunks: int = 1
    adapter_rank: int = 0
    is_int8: bool = False

    def __post_init__(self) -> None:
        problems = [*self._sizes_that_cannot_be(), *self._words_that_are_unknown()]
        if problems:
            raise ValueError("\n  ".join(["the transformer cannot be built:", *problems]))

    def _sizes_that_cannot_be(self):
        dims = ("vocabulary", "width", "num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden", "num_positions")
        too_small = [name for name in (*dims, "loss_chunks") if getattr(self, name) < 1]
        yield from (f"{name}={getattr(self, name)}: make it 1 or more" for name in too_small)
        if self.adapter_rank < 0:
            yield f"adapter_rank={self.adapter_rank}: make it 1 or more, or 0 for no adapters"
        if self.is_int8 and (self.biases or not self.adapter_rank):
            yield "is_int8 is for projections with adapters and without biases: give adapter_rank, and biases=False"
        if self.window is not None and self.window < 1:
            yield f"window={self.window}: a token sees itself, so make it 1 or more"
        if "num_kv_heads" not in too_small and self.num_heads % self.num_kv_heads:
            yield (
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key and value heads evenly: "
                "make num_heads a multiple of num_kv_heads"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            yield f"head_dim={self.head_dim} is odd, and rotary embeddings turn pairs: make it even"

    def _words_that_are_unknown(self):
        known = {
            "activation": get_args(Activation),
            "positions": get_args(Positions),
            "norm": get_args(NormKind),
            "param_dtype": get_args(Dtype),
            "dtype": get_args(Dtype),
        }
        for name, words in known.items():
            if getattr(self, name) not in words:
                yield f"{name}={getattr(self, name)!r} is not one of {', '.join(words)}"
        yield from remat_problems(self.remat)

    @property
    def num_params(self) -> int:
        """The exact number of parameters."""
        embedding = self.vocabulary * self.width * (1 if self.tied else 2)
        positions = self.num_positions * self.width if self.positions == "learned" else 0
        return embedding + positions + self.num_layers * self.num_layer_params + self._num_norm_params

    @property
    def num_layer_params(self) -> int:
        """The number of parameters of one layer."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        inward = self.hidden * (2 if self.gated else 1)
        kernels = self.width * (2 * queries + 2 * keys + inward + self.hidden)
        biases = queries + 2 * keys + self.width + inward + self.width if self.biases else 0
        return kernels + biases + 2 * self._num_norm_params

    @property
    def _num_norm_params(self) -> int:
        return self.width * (2 if self.norm == "layer" and self.biases else 1)


def remat_problems(remat: str) -> list[str]:
    """List what is wrong with a `TransformerConfig.remat`, in words.

    >>> remat_problems("queries,kesy")
    ["remat names a value 'kesy' that no layer has: did you mean 'keys'?"]
    """
    if remat in REMATS:
        return []
    names = remat.split(",")
    if len(names) == 1 and remat not in KEPT:
        return [f"remat={remat!r} is neither a way nor a value of a layer: {did_you_mean(remat, [*REMATS, *KEPT])}"]
    wrong = [name for name in names if name not in KEPT]
    return [f"remat names a value {name!r} that no layer has: {did_you_mean(name, KEPT)}" for name in wrong]
