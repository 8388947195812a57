"""Say why a proof shows nothing where a fault could hide, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlay.analysis.verify.batches import all_samples_are_alike
from outlay.analysis.verify.verification import LeafCheck
from outlay.layout.plan import Plan

DRAWN_BY_DEVICE = (
    "each device draws its own random numbers, by its number (axis_index), and with equal numbers one device "
    "computes the same: that is right if any random numbers will do, but not if one device's are meant. To prove it, "
    "key them by sample: jax.vmap(jax.random.fold_in, (None, 0))(key, numbers of the samples in the global batch)"
)
DRAWN_UNTIL = (
    "each device draws its own random numbers, by its number (axis_index), until one is accepted, so that nothing can "
    "be said about equal numbers: key them by sample, or draw in a way that needs no loop"
)


def doubts_of(checks: Sequence[LeafCheck], batches: Sequence[Any], plan: Plan | None) -> list[str]:
    """Return why nothing is known about the whole.

    Args:
        checks: every array of every step.
        batches: the batches of these steps.
        plan: how devices split them; None for a graph, whose steps have no samples.
    """
    doubts = []
    if not checks:
        doubts.append("nothing was compared: the step returns neither state nor outputs; return what it computes")
    if plan is not None and all_samples_are_alike(batches, plan):
        doubts.append(
            "every sample of the batches is the same, so that one left out or counted twice would not show: "
            "give batches of different samples (batches=), or leave them out and have some made up"
        )
    trained = [c for c in checks if c.trains]
    shown = [c for c in checks if c.reads_batch and c.kind == "output"]
    if trained and not any(c.moved for c in trained):
        doubts.append(
            "all gradients or updates are zero, so that one counted twice would not show: give another initial "
            "state (key=, or an init that is not all zeros) or batches that it learns from"
        )
    elif not trained and shown and not any(c.moved for c in shown):
        doubts.append("all that the step computes is zero: give batches (batches=) that it computes something from")
    return doubts
