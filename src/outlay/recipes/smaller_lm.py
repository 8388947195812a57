"""A transformer with sizes that any machine can compute, compiled to the same structure as the full one."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from outlay.models.attention.blockwise import BLOCK
from outlay.models.transformer.config import Precision, TransformerConfig
from outlay.models.transformer.model import remat_by_name
from outlay.recipes.smaller_mesh import TILE, SmallerMesh

WIDTH = 128
SEQUENCE = 128
NUM_HEADS = 4
HEAD_DIM = {"tpu": TILE}
"""The features of a head by platform, 8 elsewhere: kernels of TPUs take whole tiles, and others otherwise."""

NUM_ROUNDS = 8
"""Of a loop of fewer rounds little is left where compilers take the first and the last out of it."""

NUM_STACKED = 3072
"""Compilers move sums of the vectors of all layers behind the loop where these have fewer numbers than this."""

NUM_BYTES = 256
HEAD_DIMS = (256, 128)
"""The largest features of a head that kernels of some hardware take."""


@dataclass(frozen=True)
class LmSizes:
    """What the size of a training step of a language model follows from.

    Attributes:
        config: the transformer; its `num_positions` are the tokens of a sequence.
        batch: sequences a step.
        accumulate: microbatches a step.
        precision: of the products of its layers; None for the dtype of the transformer.
    """

    config: TransformerConfig
    batch: int
    accumulate: int
    precision: Precision | None = None


def smaller_lm(full: LmSizes, less: SmallerMesh) -> LmSizes:
    """Return smaller sizes that a layout splits in the same way.

    Of two dims of an array the larger stays the larger, since a layout may take the largest, and widths keep their
    proportions, since a compiler moves what is smaller: parameters or activations.

    Args:
        full: the sizes.
        less: the meshes of both.

    Example:
        >>> config = TransformerConfig(128_256, 4096, 32, 32, 8, 128, 14_336, num_positions=4096)
        >>> less = SmallerMesh({"data": 32, "model": 8}, {"data": 4, "model": 4}, ("data",))
        >>> sizes = smaller_lm(LmSizes(config, 256, 1), less)
        >>> sizes.config.width, sizes.config.hidden, sizes.config.vocabulary, sizes.config.num_heads, sizes.batch
        (128, 512, 640, 16, 16)
    """
    config = full.config
    head_dim = _head_dim(config, less)
    is_longer = config.positions != "learned" or config.num_positions >= config.width
    width = less.size(config.width, at_least=max(WIDTH, head_dim + 1, 0 if is_longer else SEQUENCE + 1))
    hidden = less.size(config.hidden, at_least=math.ceil(config.hidden * width / config.width))
    widest = max(width if config.vocabulary > config.width else 0, hidden if config.vocabulary > config.hidden else 0)
    accumulate = _rounds(full.accumulate, less)
    sequence = _sequence(config, width, less)
    smaller = dataclasses.replace(
        config,
        vocabulary=less.size(config.vocabulary, at_least=max(widest + 1, NUM_BYTES)),
        width=width,
        hidden=hidden,
        num_layers=_rounds(config.num_layers, less, math.ceil(NUM_STACKED / width)),
        num_positions=sequence,
        window=config.window and max(config.window * sequence // config.num_positions, 1),
        remat=remat_by_name(config),
        head_dim=head_dim,
        **_heads(config, head_dim / config.head_dim * config.width / width, less),
    )
    return LmSizes(smaller, accumulate * less.batch(full.batch // full.accumulate), accumulate, full.precision)


def _rounds(num: int, less: SmallerMesh, at_least: int = 0) -> int:
    """Return a number of rounds of a loop, odd if the full one is, since compilers join two rounds to one."""
    return less.size(num, at_least=max(NUM_ROUNDS, at_least), tile=2, may_split=True)


def _head_dim(config: TransformerConfig, less: SmallerMesh) -> int:
    """Return as few features of a head as the same kernels take."""
    least = HEAD_DIM.get(less.platform, 8)
    larger = next((limit + 1 for limit in HEAD_DIMS if config.head_dim > limit), least)
    return less.size(config.head_dim, at_least=larger, tile=least if larger == least else TILE, may_split=True)


def _heads(config: TransformerConfig, fewer: float, less: SmallerMesh) -> dict[str, int]:
    """Return the numbers of heads: in groups if they were, and fewer by a factor if they can."""
    keys = less.size(config.num_kv_heads, at_least=NUM_HEADS, tile=1, may_split=True)
    if config.num_heads == config.num_kv_heads:
        return {"num_kv_heads": keys, "num_heads": keys}
    at_least = max(2 * keys, round(config.num_heads / fewer))
    heads = less.size(config.num_heads, at_least=at_least, tile=1, multiple_of=keys, may_split=True)
    if heads % keys:
        keys, heads = config.num_kv_heads, config.num_heads
    return {"num_kv_heads": keys, "num_heads": heads}


def _sequence(config: TransformerConfig, width: int, less: SmallerMesh) -> int:
    """Return a number of tokens, more than the width if they were, in as many chunks and in several blocks."""
    in_blocks = 3 * BLOCK if config.dtype == "float32" and config.num_positions > BLOCK else 0
    learned = config.positions == "learned" and config.num_positions >= config.width
    as_width = width + (config.num_positions > config.width) if learned else 0
    at_least = max(SEQUENCE, in_blocks, as_width)
    return less.size(config.num_positions, at_least=at_least, multiple_of=config.loss_chunks, may_split=True)
