"""What a run came to, as facts that print themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from outlay.core.error_types import RunFolderError
from outlay.core.quantities import counted
from outlay.train.metrics_file import finite


class Result(Protocol):
    """What every run comes to: text for people, and data."""

    def __str__(self) -> str: ...

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        ...


@dataclass(frozen=True)
class RunResult:
    """One finished run.

    Attributes:
        recipe: the recipe's name.
        layout: the layout's name.
        devices: what it ran on, in words.
        simulated: whether the devices were pretended, so that times say nothing about speed.
        num_steps: steps taken in all.
        resumed_after: the step that the run was continued after; 0 for one from the start.
        seconds: what the steps took, without compiling.
        num_samples: samples seen.
        training: the metrics of the last step.
        held_out: the metrics on held-out data; empty where the recipe has none.
        sample: what the recipe shows of the trained state, as text; empty where it shows nothing.
        folder: the run folder.
    """

    recipe: str
    layout: str
    devices: str
    simulated: bool
    num_steps: int
    resumed_after: int
    seconds: float
    num_samples: int
    training: Mapping[str, float]
    held_out: Mapping[str, float]
    sample: str
    folder: str

    @property
    def facts(self) -> dict[str, str]:
        """The result in words, by name, for people."""
        rate = self.num_samples / self.seconds if self.seconds else 0.0
        continued = f", continued after step {self.resumed_after}" if self.resumed_after else ""
        honest = " (simulated devices: this is not a speed)" if self.simulated else ""
        return {
            "ran": f"{self.recipe}, layout {self.layout}, {self.devices}",
            "training": f"{_in_words(self.training)} after {counted(self.num_steps, 'step')}{continued}",
            **({"held out": _in_words(self.held_out)} if self.held_out else {}),
            "time": f"{self.seconds:.1f} s, {rate:,.0f} samples/s{honest}",
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {**asdict(self), "training": finite(self.training), "held_out": finite(self.held_out)}

    def __str__(self) -> str:
        lines = [f"{name:<9} {words}" for name, words in self.facts.items()]
        folder = f"run folder {self.folder}, report {self.folder}/report.html (open it in a browser)"
        sample = ["", self.sample, ""] if self.sample else []
        return "\n".join([*lines, *sample, folder])


class ResultNotWritten(RunFolderError):
    """A run that ended well, and whose folder could not be written to at the end.

    Attributes:
        result: what it came to.
    """

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


@contextlib.contextmanager
def result_not_lost(result: Any) -> Iterator[None]:
    """Have what cannot be written after the last step raised with the result of the run.

    Raises:
        ResultNotWritten: something cannot be written.
    """
    try:
        yield
    except RunFolderError as error:
        raise ResultNotWritten(f"the run ended well, but {error}", result) from error


def _in_words(metrics: Mapping[str, Any]) -> str:
    """The numbers; a metric of several is left to the metrics file."""
    return ", ".join(
        f"{name} {value:.2%}" if name == "accuracy" else f"{name} {value:.4f}"
        for name, value in metrics.items()
        if name not in ("step", "seconds") and not isinstance(value, list)
    )
