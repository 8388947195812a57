"""The configuration of a transformer: dims, variants, dtypes and rematerialization; and its number of parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from outlay.core.suggest import did_you_mean

Dtype = Literal["float32", "bfloat16"]
Precision = Literal["fp8", "fp8-delayed", "fp8-blockwise"]
Positions = Literal["rotary", "learned", "none"]
NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "relu"]


REMATS = ("none", "full", "attention", "products")
"""The rematerialization policies, besides names of `KEPT`; see `TransformerConfig.remat`."""

KEPT = (
    *("layer_input", "branch_input", "queries", "keys", "values", "attention", "output", "branch_output", "residual"),
    *("gate", "up", "down"),
)
"""The values of a layer that `remat` can save by name."""

PRODUCTS = "queries,keys,values,output,gate,up,down"
"""The names of what a layer's products give."""

ELSEWHERE = {
    # MaxText's remat_policy, by what its decoders save.
    "minimal": PRODUCTS,
    "minimal_with_context": f"{PRODUCTS},attention",
    "minimal_flash": f"{PRODUCTS},attention",
    "save_dot_with_context_except_mlp": "queries,keys,values,attention,output",
    "save_dot_except_mlpwi": "queries,keys,values,output,down",
    "save_dot_except_mlp": "queries,keys,values,output",
    "save_qkv_proj": "queries,keys,values",
    "save_out_proj": "output",
    "minimal_offloaded": ",".join(f"{name}=offload" for name in PRODUCTS.split(",")),
    "qkv_proj_offloaded": "queries=offload,keys=offload,values=offload",
    # torchtitan's selective_ac_option: attention, and every second of the products of a layer. By layer: all of them.
    "op": "queries,values,attention,gate,down",
    "layer": "full",
    # Megatron's recompute-granularity.
    "selective": "attention",
}
"""Policies by the names that MaxText, torchtitan and Megatron give them, and what they are called here."""

MODULES = {"core_attn": {"attention"}, "mlp": {"gate", "up", "down"}, "layernorm": set[str]()}
"""Megatron's recompute-modules, some of which are a policy, and which values each computes again; norms always are."""

TENSORS = {
    "decoder_layer_input": "layer_input",
    "query_proj": "queries",
    "key_proj": "keys",
    "value_proj": "values",
    "context": "attention",
    "out_proj": "output",
    "mlpwi_0": "gate",
    "mlpwi_1": "up",
    "mlpwo": "down",
}
"""What MaxText's custom policy calls the values of a layer."""

_STORED = ("device", "offload", "remat")
"""Where MaxText's custom policy keeps a value: here, in the host's memory, or nowhere."""

_EVERY_NTH = re.compile(r"layer:(\d+)")
_BUDGET = re.compile(r"memory_budget:(0(?:\.\d*)?|1(?:\.0*)?|\.\d+)")
_LIKE_BUDGET = re.compile(r"(memory[_-]?)?budget\b.*")


@dataclass(frozen=True)
class TransformerConfig:
    """A decoder-only transformer.

    Attributes:
        vocabulary: the number of tokens in the vocabulary.
        width: the features of the residual stream.
        num_layers: the number of layers.
        num_heads: the number of query heads.
        num_kv_heads: the number of key and value heads; each serves `num_heads / num_kv_heads` query heads.
        head_dim: the features of a head.
        hidden: the hidden features of the feed-forward layers.
        tied: whether the output head is the transposed embedding.
        gated: whether the feed-forward layer has a gate besides `up`.
        activation: the activation of the gate, or of `up` if there is no gate.
        positions: the position encoding: rotated queries and keys, or a learned vector for each position.
        num_positions: the number of learned position vectors, which is the longest sequence.
        norm: root-mean-square or layer normalisation; the latter also subtracts the mean.
        biases: whether the projections and the layer norms have biases.
        window: the number of tokens that a query attends to, itself included; None for all previous tokens.
        rotary_base: the longest wavelength of the rotary embedding is nearly 2π times this many tokens.
        param_dtype: the dtype of the parameters.
        dtype: the compute dtype; norms, softmax and loss are float32 inside.
        remat: what the backward pass recomputes in each layer to save memory. `none`: only norms, rotations and
            activations, which are cheap; `attention`: also the attention; `products`: everything but matrix products
            and attention; `full`: the whole layer. Or the names of values to save, with everything else recomputed:
            some of `KEPT`, as in `queries,keys,values`, each also with where MaxText's custom policy keeps it, as in
            `gate=offload,up=offload` for the host's memory. Or a policy by the name that MaxText, torchtitan or
            Megatron give it, such as `save_qkv_proj`, `minimal_offloaded`, `op`, `layer` (`layer:2`: of every second
            layer) or `selective`, or Megatron's modules to recompute, as in `core_attn,mlp`. Or torchtitan's memory
            budget, `memory_budget:0.5`: of the bytes that a layer keeps with `none` at most this share, for the values
            that cost most to compute again; 0 is `full`, 1 is `none`.
        loss_chunks: the number of chunks in which the loss processes a sequence, so that only the logits of one chunk
            are in memory at a time.
        adapter_rank: the rank of low-rank adapters for the projections of a layer; 0 for none.
        is_int8: with adapters, store the projections' own kernels as 8-bit integers.

    Raises:
        ValueError: parts do not fit together; the message lists all problems.

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
        yield from remat_problems(self.remat, self.num_layers)

    @property
    def has_experts(self) -> bool:
        """Whether feed-forward layers are mixtures of experts (`ExpertConfig`)."""
        return False

    @property
    def num_params(self) -> int:
        """The number of parameters."""
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


def remat_of(remat: str) -> str:
    """Return a policy by the words of this package.

    >>> remat_of("save_qkv_proj"), remat_of("layer"), remat_of("memory_budget:1")
    ('queries,keys,values', 'full', 'none')
    >>> remat_of("core_attn,layernorm"), remat_of("mlp"), remat_of("core_attn,mlp")
    ('attention', 'queries,keys,values,output,attention', 'queries,keys,values,output')
    """
    budget = remat_budget(remat)
    if budget in (0.0, 1.0):
        return "none" if budget else "full"
    if _is_of_modules(remat):
        again = set[str]().union(*(MODULES[name] for name in remat.split(",")))
        by_name = ",".join(name for name in ELSEWHERE["minimal_flash"].split(",") if name not in again)
        return by_name if again - {"attention"} else "attention" if again else "none"
    return ELSEWHERE.get(remat, remat)


def _is_of_modules(remat: str) -> bool:
    return set(remat.split(",")) <= {*MODULES}


def remat_problems(remat: str, num_layers: int = 0) -> list[str]:
    """List the problems of a `TransformerConfig.remat`.

    Args:
        remat: the policy.
        num_layers: the number of layers; 0 if unknown.

    >>> remat_problems("queries,kesy")
    ["remat names a value 'kesy' that no layer has: did you mean 'keys'?"]
    """
    if turns := remat_turns(remat):
        odd = num_layers % turns
        return [f"remat={remat!r} recomputes one of {turns} layers, which do not divide {num_layers}"] if odd else []
    if remat in REMATS or remat in ELSEWHERE or _is_of_modules(remat) or remat_budget(remat) is not None:
        return []
    if _LIKE_BUDGET.fullmatch(remat):
        return [f"remat={remat!r}: a budget is a number from 0 (full) to 1 (none), written memory_budget:0.5"]
    if "," not in remat and "=" not in remat and remat not in _known_values():
        known = did_you_mean(remat, [*REMATS, *_known_values(), *ELSEWHERE, *MODULES, "memory_budget:0.5"])
        return [f"remat={remat!r} is neither a policy nor a value of a layer: {known}"]
    parts = [part.partition("=") for part in remat.split(",")]
    wrong = [name for name, _, _ in parts if name not in _known_values()]
    strange = [(name, stored) for name, given, stored in parts if given and stored not in _STORED]
    return [
        *(f"remat names a value {name!r} that no layer has: {did_you_mean(name, _known_values())}" for name in wrong),
        *(f"remat keeps {name!r} in {stored!r}: {did_you_mean(stored, _STORED)}" for name, stored in strange),
    ]


def _known_values() -> tuple[str, ...]:
    return (*KEPT, *TENSORS)


def remat_turns(remat: str) -> int:
    """Return every how many layers one is recomputed by a policy such as `layer:2`; 0 for any other policy."""
    match = _EVERY_NTH.fullmatch(remat)
    return int(match[1]) if match else 0


def remat_budget(remat: str) -> float | None:
    """Return the share of memory of a policy such as `memory_budget:0.5`; None for any other policy."""
    match = _BUDGET.fullmatch(remat)
    return float(match[1]) if match else None
