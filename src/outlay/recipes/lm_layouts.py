"""The layouts of the transformer: split by sample, by parameter, by head and feature, and by place in the sequence."""

from __future__ import annotations

from jax.sharding import PartitionSpec as P

from outlay.layout.layout import Layout
from outlay.layout.rule import Rule
from outlay.layout.strategies import data_parallel, fsdp, zero1
from outlay.models.transformer.config import TransformerConfig

COLUMNS = ("attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up")
"""Projections into a branch: stacked kernels (layers, width, outputs, …), and biases (layers, outputs, …)."""

ROWS = ("attention.output", "feed_forward.down")
"""Projections out of a branch: stacked kernels (layers, inputs, …, width). Their biases (layers, width) stay whole."""

TWO_AXES = "data=-1,model=2"


def lm_layouts(config: TransformerConfig) -> tuple[dict[str, Layout], dict[str, str]]:
    """Layouts and meshes by name: `dp`, `zero1`, `fsdp`, `tp`, `fsdp+tp` and `fsdp+tp+sp`.

    Args:
        config: the transformer, for which of its parts there are to split.
    """
    by_sample = inside("residual", P("data")) + data_parallel()
    vocabulary = inside("table", P("model")) + inside("head", P(None, "model"))
    two_axes = megatron(config) + _kernels(fsdp, "params") + vocabulary
    layouts = {
        "dp": data_parallel(),
        "zero1": _kernels(zero1, "opt_state") + data_parallel(),
        "fsdp": _kernels(fsdp, "params") + by_sample,
        "tp": megatron(config) + by_sample,
        "fsdp+tp": two_axes + by_sample,
        "fsdp+tp+sp": two_axes + sequence_parallel() + data_parallel(),
    }
    return layouts, {name: TWO_AXES for name in layouts if "tp" in name}


def megatron(config: TransformerConfig) -> Layout:
    """Split heads, hidden features and the vocabulary over `model`: one all-reduce a branch and direction.

    Source: Shoeybi et al., Megatron-LM (arXiv:1909.08053), section 3.

    Args:
        config: the transformer, for which of its parts there are to split.
    """
    columns = [name for name in COLUMNS if config.gated or name != "feed_forward.gate"]
    kernels = [(f"params.layers.{name}.kernel", P(None, None, "model")) for name in columns]
    biases = [(f"params.layers.{name}.bias", P(None, "model")) for name in columns if config.biases]
    rows = [(f"params.layers.{name}.kernel", P(None, "model")) for name in ROWS]
    head = [] if config.tied else [("params.head.kernel", P(None, "model"))]
    return Layout([*kernels, *biases, *rows, ("params.embedding.embedding", P("model")), *head])


def sequence_parallel() -> Layout:
    """Split the residual stream along the sequence over `model`, and gather it at the entry of a branch.

    Source: Korthikanti et al. (2022), arXiv:2205.05198, section 4.2.2.
    """
    branches = inside("branch_input", P("data")) + inside("branch_output", P("data"))
    return inside("residual", P("data", "model")) + branches


def inside(name: str, spec: P) -> Layout:
    """Where a value that the model names lives. Optional, since a plan of the state alone does not know it."""
    return Layout([Rule(name, spec, optional=True)])


def _kernels(strategy, root: str) -> Layout:
    """A strategy for kernels and embeddings.

    What is left are the scales of the norms and biases, a ten-thousandth of the parameters: splitting them would save
    nothing and cost a collective each.
    """
    return strategy(pattern=f"{root}.**.kernel", min_size=1) + strategy(pattern=f"{root}.**.embedding", min_size=1)
