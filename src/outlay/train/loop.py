"""The training loop: a bounded number of steps in flight, metrics written as they come, an orderly stop on Ctrl-C."""

from __future__ import annotations

import collections
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax

from outlay.core.errors import ProgramError
from outlay.execute.program import Program
from outlay.train.metrics_file import MetricsFile
from outlay.train.progress import Progress

# Enough that the devices never wait for Python. Without a bound, host memory fills with waiting batches, the progress
# shown runs far ahead of the devices, and simulated devices can starve each other of threads.
_MAX_IN_FLIGHT = 2


class Data(Protocol):
    """Batches by global step."""

    def __getitem__(self, step: int, /) -> Any:
        """The batch of a step, counted from 0."""


@dataclass(frozen=True)
class Fit:
    """What a training run came to.

    Attributes:
        state: the state after the last step.
        history: the metrics of every step, each with its `step`, counted from 1, and `seconds` since the start.
        seconds: from the first step's dispatch to the last step's metrics, without compiling.
        num_samples: samples trained on.
    """

    state: Any
    history: list[dict[str, float]]
    seconds: float
    num_samples: int


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a run; says how far it came.

    Attributes:
        history: the metrics of the steps that were finished, as in `Fit`.
    """

    def __init__(self, history: list[dict[str, float]], num_steps: int, metrics_path: Path | None) -> None:
        self.history = history
        kept = f"; the metrics so far are kept in {metrics_path}" if metrics_path else ""
        super().__init__(f"stopped after step {len(history)} of {num_steps}{kept}")


def fit(
    program: Program,
    data: Data,
    *,
    num_steps: int,
    key: Any,
    metrics_path: Path | None = None,
    progress: bool = True,
) -> Fit:
    """Make the state and run a program's step over batches by global step.

    Args:
        program: its step returns a dictionary of scalars.
        data: `data[step]` is the batch of a step, such as `TrainData`.
        num_steps: how many steps.
        key: what `program.init` takes.
        metrics_path: a file that gets the metrics of each step as a line of JSON, as soon as they are there.
        progress: show loss, samples a second and the time left on stderr.

    Raises:
        Interrupted: on Ctrl-C, after the metrics so far were written.
        ProgramError: there is no step to take.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> step = lambda state, batch: (state + batch.sum(), {"loss": batch.mean()})
        >>> program = outlay.program(step, lambda key: 0.0, np.ones(8), layout=outlay.data_parallel(), mesh=mesh)
        >>> done = outlay.fit(program, [np.ones(8), np.zeros(8)], num_steps=2, key=None, progress=False)
        >>> [metrics["loss"] for metrics in done.history], float(done.state)
        ([1.0, 0.0], 8.0)
    """
    if num_steps < 1:
        raise ProgramError(f"num_steps={num_steps}: a run takes 1 step or more")
    samples_a_step = jax.tree.leaves(program.batch_shapes)[0].shape[0]
    history: list[dict[str, float]] = []
    in_flight: collections.deque[Any] = collections.deque()
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(MetricsFile(metrics_path)) if metrics_path else None
        shown = stack.enter_context(Progress(num_steps, samples_a_step)) if progress else None
        program.compiled  # noqa: B018  compiled here, so that the clock below times steps only
        state = program.init(key)
        start = time.perf_counter()

        def finish_oldest() -> None:
            fetched = jax.device_get(in_flight.popleft())
            metrics = {name: float(fetched[name]) for name in sorted(fetched, key=lambda name: name != "loss")}
            seconds = round(time.perf_counter() - start, 4)
            history.append({"step": len(history) + 1, **metrics, "seconds": seconds})
            if writer:
                writer.write(history[-1])
            if shown:
                shown.show(history[-1])

        try:
            for step in range(num_steps):
                if len(in_flight) >= _MAX_IN_FLIGHT:
                    finish_oldest()
                state, metrics = program(state, data[step])
                in_flight.append(metrics)
            while in_flight:
                finish_oldest()
        except KeyboardInterrupt as stop:
            raise Interrupted(history, num_steps, metrics_path) from stop
    return Fit(state, history, history[-1]["seconds"], samples_a_step * num_steps)
