"""Pipelines as placements: stacked layers split over stages, and the batch taken through them in microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.core.one_line import OneLine
from outlay.core.paths import split_path
from outlay.core.public_names import called_as
from outlay.core.quantities import counted
from outlay.layout.placement import CannotPlace, Choice, LeafView

CUTS = ("equal", "balanced")
"""How layers can be cut into stages, besides by numbers."""


@dataclass(frozen=True)
class Pipeline(OneLine):
    """Layers as a pipeline; see `pipeline`.

    Attributes:
        axis: the mesh axis of the stages.
        microbatches: equal parts of the batch.
        repeats: how often a microbatch goes round.
        cut: how many layers each group has: `equal`, `balanced`, or the numbers.
    """

    axis: str
    microbatches: int
    repeats: int = 1
    cut: str | tuple[int, ...] = "equal"

    def __post_init__(self) -> None:
        problems = [
            Problem("not a number", name, f"{name}={number!r}; it is a whole number from {least}", f"{name}={usual}")
            for name, number, least, usual in (
                ("microbatches", self.microbatches, 2, 8),
                ("repeats", self.repeats, 1, 1),
            )
            if type(number) is not int or number < least
        ]
        if not isinstance(self.axis, str) or not self.axis:
            what = f"axis={self.axis!r}; it is the mesh axis whose devices are the stages"
            problems.insert(0, Problem("not an axis", "axis", what, 'axis="stage"'))
        if not _is_cut(self.cut):
            what = f"cut={self.cut!r}; it is one of {', '.join(map(repr, CUTS))}, or a number of layers for each group"
            problems.append(Problem("not a cut", "cut", what, 'cut="balanced", or cut=(3, 5, 5, 3)'))
        if problems:
            raise LayoutError("this pipeline cannot be used:", problems)

    @property
    def stage_axis(self) -> str:
        """The mesh axis of the stages, by which layouts know a pipeline."""
        return self.axis

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes it uses."""
        return (self.axis,)

    def num_ticks(self, num_stages: int) -> int:
        """Return the number of rounds in which every stage runs its layers once."""
        return self.microbatches * self.repeats + num_stages - 1

    def in_words(self, num_stages: int) -> str:
        """Say how long it takes.

        >>> Pipeline("stage", 8, 2).in_words(4)
        '8 microbatches twice through 4 stages: 19 ticks, 15.8 % of them idle'
        """
        ticks = self.num_ticks(num_stages)
        often = {1: "once", 2: "twice"}.get(self.repeats, f"{self.repeats} times")
        idle = 100 * (num_stages - 1) / ticks
        return (
            f"{self.microbatches} microbatches {often} through {counted(num_stages, 'stage')}: "
            f"{ticks} ticks, {idle:.1f} % of them idle"
        )

    def __call__(self, leaf: LeafView) -> Choice:
        """Choose for one leaf: dim 0, which counts its layers; or any dim that divides.

        The second is for one layer of a list, and for a stack of which stages have unequal parts.
        """
        if is_in_list(leaf.path):
            return self._exchanged(leaf, leaf.free_dims)
        if self.cut != "equal":
            return self._exchanged(leaf, [dim for dim in leaf.free_dims if dim > 0])
        if self.axis not in leaf.free_axes or 0 not in leaf.free_dims:
            return Choice(P(), f"dim 0 or axis {self.axis!r} is taken", blocked=True)
        stages, layers = leaf.free_axes[self.axis], leaf.shape[0]
        if layers % (stages * self.repeats):
            rounds = f" x {self.repeats} repeats" if self.repeats > 1 else ""
            what = f"{layers} layers (dim 0 of {leaf.shape}) do not divide into {self.axis}={stages} stages{rounds}"
            up = -(-layers // (stages * self.repeats)) * stages * self.repeats
            fewer = ", or repeats=1" if self.repeats > 1 and layers % stages == 0 else ""
            raise CannotPlace(what, f"{up} layers{fewer}; or a mesh with a number of stages that divides {layers}")
        each = f"{layers // stages} of {layers} layers on each of {counted(stages, 'stage')}"
        return Choice(P(self.axis), f"{each}; {self.in_words(stages)}" if stages > 1 else each)

    def _exchanged(self, leaf: LeafView, dims: Sequence[int]) -> Choice:
        """Choose for an array that is sent to stages in each step; dim 0 fits a stack in a list too, if it divides."""
        if self.axis not in leaf.free_axes or not dims:
            return Choice(P(), f"no free dim or axis left for {self.axis!r}", blocked=True)
        stages = leaf.free_axes[self.axis]
        fitting = [dim for dim in dims if leaf.shape[dim] and leaf.shape[dim] % stages == 0]
        if not fitting:
            what = f"no free dim of {leaf.shape} is divisible by {self.axis}={stages}"
            stacked = f"layers in one stack ({leaf.path} in a list)" if is_in_list(leaf.path) else 'cut="equal"'
            raise CannotPlace(what, f"a mesh with fewer stages, or {stacked}")
        dim = 0 if 0 in fitting else max(fitting, key=lambda dim: leaf.shape[dim])
        spec = P(*[None] * dim, self.axis)
        whose = "the stage of its layer" if is_in_list(leaf.path) else "the stages of its layers"
        each = f"dim {dim} over {counted(stages, 'stage')}, sent to {whose} in each step"
        return Choice(spec, f"{each}; {self.in_words(stages)}" if stages > 1 else each)

    def __str__(self) -> str:
        repeats = f", {self.repeats} repeats" if self.repeats > 1 else ""
        cut = self.cut if isinstance(self.cut, str) else " + ".join(map(str, self.cut))
        cut = "" if cut == "equal" else f", cut {cut}"
        return f"pipeline over {self.axis!r} ({self.microbatches} microbatches{repeats}{cut})"


def _is_cut(cut: object) -> bool:
    if isinstance(cut, tuple):
        return bool(cut) and all(type(number) is int and number >= 1 for number in cut)
    return cut in CUTS


def is_in_list(path: str) -> bool:
    """Return whether a leaf stands in a list, as one layer's does where a model holds its layers so.

    >>> is_in_list("params.layers.3.kernel"), is_in_list("params.layers.kernel")
    (True, False)
    """
    return any(part.isdigit() for part in split_path(path))


@called_as(
    'outlay.layout.pipeline("stage", microbatches=8)',
    num_microbatches="microbatches=",
    num_stages="the size of the mesh axis: outlay.mesh(stage=4, data=2)",
    stages="the size of the mesh axis: outlay.mesh(stage=4, data=2)",
    num_repeats="repeats=",
    schedule='outlay.program(..., mode="placed", schedule="1f1b")',
)
def pipeline(
    axis: str = "stage", *, microbatches: int, repeats: int = 1, cut: str | tuple[int, ...] = "equal"
) -> Pipeline:
    """Run layers that a model scans over, or lists, as a pipeline: each stage, a group of devices, holds some of them.

    For leaves that are stacked, with one entry of dim 0 for each layer, where the model runs its layers by a scan over
    them (`jax.lax.scan`, `nnx.scan`, `nn.scan`). The model stays as it is. Layers in a list are run by
    `outlay.layers(blocks, x)`; a leaf of one is split over the stages along any dim, and sent to the stage of its
    layer in each step. The batch goes through the stages in equal
    microbatches, all stages at work on another one; for the first and last `stages - 1` of `microbatches * repeats +
    stages - 1` ticks some have nothing to do. With repeats, a microbatch goes round several times and a stage has as
    many groups of layers, so that less time is idle; the stacks stay in the order of the model, and the layers are
    exchanged between stages once a step. What stands before and after the layers, such as embedding and head, is
    computed as without the rule. Sources: Huang et al., GPipe (arXiv:1811.06965); Narayanan et al., interleaved stages
    (arXiv:2104.04473).

    Args:
        axis: the mesh axis whose devices are the stages.
        microbatches: equal parts of the batch, 2 or more; with accumulation, of each of its parts. With repeats, at
            least the number of stages.
        repeats: how often a microbatch goes round.
        cut: how many layers each group has. `equal`: the same number. `balanced`, in mode placed: fewer where the
            first also computes what comes before the layers, such as an embedding, and the last what comes after,
            so that the slowest stage takes the least time; by the FLOPs of each. Or the numbers, group by group, as
            in `(3, 5, 5, 3)`: with repeats the groups of all stages for the first round, then for the second. The
            stacks are then split over the stages along another dim, and sent to their stages once a step.

    Raises:
        LayoutError: a number is no whole number, or too small; or there is no such cut.

    Example:
        >>> layout = outlay.Layout([("params.layers.**", outlay.layout.pipeline("stage", microbatches=8))])
        >>> print(layout)
        1. params.layers.**  pipeline over 'stage' (8 microbatches)
        >>> plan = (layout + outlay.data_parallel()).plan(
        ...     {"params": {"layers": {"up": jnp.ones((12, 4, 4))}}}, outlay.mesh(stage=4, data=2))
        >>> plan["params.layers.up"].spec, plan["params.layers.up"].reason
        (P('stage', None, None), '3 of 12 layers on each of 4 stages; 8 microbatches once through 4 stages: ...')
    """
    return Pipeline(axis, microbatches, repeats, cut)
