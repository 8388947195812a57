"""The names of what the metrics of a run can be logged to."""

from __future__ import annotations

from collections.abc import Sequence

from outlay.core.error_types import ArgumentError
from outlay.core.quantities import listed
from outlay.core.terminal_text import visible

LOG_NAMES = ("tensorboard", "wandb", "mlflow")
"""What a run can be logged to, as users type it."""


def log_names(to: str | Sequence[str]) -> tuple[str, ...]:
    """Return what to log to, each once; `off` alone is nothing.

    Raises:
        ArgumentError: it is something else; all of that is listed.

    >>> log_names("tensorboard"), log_names(["wandb", "wandb"]), log_names(["off"])
    (('tensorboard',), ('wandb',), ())
    """
    names = [to] if isinstance(to, str) else list(to)
    if names == ["off"]:
        return ()
    if unknown := [str(name) for name in names if name not in LOG_NAMES]:
        raise ArgumentError(
            f"nothing is logged to {listed([visible(name) for name in unknown], 6)}"
            f"\n  fix: one of {', '.join(LOG_NAMES)}, or off alone"
        )
    return tuple(dict.fromkeys(names))
