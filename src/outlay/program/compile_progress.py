"""Say on a terminal what is being compiled, and for what, if that takes long."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import jax

from outlay.core.quantities import counted
from outlay.core.slow_progress import progress_on_terminal


def compile_progress(lowered: jax.stages.Lowered, device: jax.Device) -> contextlib.AbstractContextManager[None]:
    """Return the context that says on a terminal what is compiled, if that takes long."""
    return progress_on_terminal(lambda: in_words(lowered, device))


def in_words(lowered: jax.stages.Lowered, device: jax.Device) -> str:
    """Say what is compiled, and for what."""
    attributes: Any = cast(Any, lowered.compiler_ir("stablehlo")).operation.attributes
    name = str(attributes["sym_name"]).strip('"').removeprefix("jit_")
    num = str(attributes["mhlo.num_partitions"]).partition(" ")[0]
    return f"compiling {name} for {counted(int(num), 'device')} of {device.device_kind}"
