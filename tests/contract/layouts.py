"""The layouts of the contract tests, a row of `LAYOUTS` each, and which of them is tried with which model and mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from jax.sharding import PartitionSpec as P
from tests.contract.small_models import MODELS, SmallModel

import outlay

MIN_SIZE = 2**4
"""Small enough that the small models' leaves are split."""


@dataclass(frozen=True)
class NamedLayout:
    """A layout for any of the small models.

    Attributes:
        name: what the test is called.
        axes: the mesh's axes, over 8 devices.
        of: the layout for a model.
    """

    name: str
    axes: dict[str, int]
    of: Callable[[SmallModel], outlay.Layout]


DATA = {"data": 8}
DATA_MODEL = {"data": 4, "model": 2}


def over_both_axes(leaf: outlay.layout.LeafView) -> outlay.layout.Choice:
    """A user's policy: split the last dim over all devices where it divides."""
    if leaf.shape[-1] % 8 == 0 and len(leaf.free_axes) == 2:
        return outlay.layout.Choice(
            P(*[None] * (len(leaf.shape) - 1), ("data", "model")), "the last dim is divisible by 8"
        )
    return outlay.layout.Choice(P(), "the last dim is not divisible by 8")


LAYOUTS = [
    NamedLayout(
        "replicated", DATA, lambda model: outlay.Layout([("batch.**", outlay.replicate()), outlay.replicate()])
    ),
    NamedLayout("dp", DATA, lambda model: outlay.data_parallel()),
    NamedLayout("zero1", DATA, lambda model: outlay.zero1(min_size=MIN_SIZE) + outlay.data_parallel()),
    NamedLayout("zero2", DATA, lambda model: outlay.zero2(min_size=MIN_SIZE) + outlay.data_parallel()),
    NamedLayout("fsdp", DATA, lambda model: outlay.fsdp(min_size=MIN_SIZE) + outlay.data_parallel()),
    NamedLayout(
        "tp",
        DATA_MODEL,
        lambda model: model.tensor_parallel() + outlay.Layout([("batch.**", outlay.replicate()), outlay.replicate()]),
    ),
    NamedLayout(
        "fsdp+tp",
        DATA_MODEL,
        lambda model: model.tensor_parallel() + outlay.fsdp(min_size=MIN_SIZE) + outlay.data_parallel(),
    ),
    NamedLayout(
        "policy", DATA_MODEL, lambda model: outlay.Layout([("params.**", over_both_axes)]) + outlay.data_parallel()
    ),
    NamedLayout("specs", DATA_MODEL, lambda model: outlay.Layout(model.specs) + outlay.data_parallel()),
]

MODES = ("auto", "manual")
WHOLE_PARAMETERS = ("replicated", "zero1", "zero2")


def pairs_in(mode: str) -> list[Any]:
    """The pairs of a model and a layout that are tried in this mode, as parameters of a test.

    They are one colour of a chessboard of models and layouts, whose other colour is tried in the other mode. So every
    model is tried in every mode and under every layout that splits parameters, and under data parallelism; the other
    layouts without split parameters, under which a model computes what it does there, meet one model in each mode. On
    the newest JAX every layout is tried once, in one of the modes: it may compile an operation or a layout otherwise,
    but hardly the two together.
    """
    pairs = []
    for row, layout in enumerate(LAYOUTS):
        models = MODELS[(row + MODES.index(mode)) % 2 :: 2]
        chosen = models[row // 2 % len(models)]
        models = [chosen] if layout.name in WHOLE_PARAMETERS else models
        on_newest_jax = chosen if mode == MODES[row // 2 % 2] else None
        for model in models:
            marks = [] if model is on_newest_jax else [pytest.mark.any_jax]
            pairs.append(pytest.param(model, layout, id=f"{model.name}-{layout.name}", marks=marks))
    return pairs
