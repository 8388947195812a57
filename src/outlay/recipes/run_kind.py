"""What a kind of run is, and the result of every run: training is one kind, others are plugged in from above."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from outlay.core.error_types import RecipeError, RunFolderError
from outlay.core.quantities import counted, plural
from outlay.recipes.prepare import Prepared
from outlay.render.page import Code, Facts, Line, Page
from outlay.render.report import Report
from outlay.train.multihost import is_first
from outlay.train.patience import Patience
from outlay.train.recording import MemoryRecorder, Recorder, RowTypes, ZarrRecorder
from outlay.train.run_folder import RECORDING, RunFolder
from outlay.train.saving import Saved, Saving

if TYPE_CHECKING:
    from outlay.train.metrics_log import MetricsLog

RECORDED_ROWS = "recorded_rows"
"""The name, in what is collected, of the number of rows of the recording."""


@dataclass(frozen=True)
class TrainingOptions:
    """How training is evaluated, ended early and stepped: arguments of `outlay.fit`, with their names there.

    Attributes:
        evaluate_every: the number of steps from one call of the recipe's `evaluate` to the next.
        patience: the number of evaluations without an improvement after which training ends.
        steps_per_call: steps in one compiled call.
        log: what the metrics are logged to beside the run folder, as `MetricsLog` takes it.
    """

    evaluate_every: int | None = None
    patience: Patience | None = None
    steps_per_call: int | None = None
    log: tuple[str, ...] | None = None

    def or_as_before(self, earlier: Mapping[str, Any]) -> TrainingOptions:
        """Return the same, with missing options taken from the config of the run that is continued."""
        before = {field.name: earlier.get(field.name) for field in fields(self)}
        if patience := before["patience"]:
            before["patience"] = Patience(**patience)
        if logged := before["log"]:
            before["log"] = tuple(logged)
        given = {name: value for name, value in vars(self).items() if value is not None}
        return TrainingOptions(**{**before, **given})


@dataclass(frozen=True)
class RunSetup:
    """What a run starts with: its folder emptied, its program compiled, and what it continues from restored.

    Attributes:
        steps: the number of steps.
        folder: the run folder.
        saving: saves it on its way; None if nothing is saved.
        start: what it continues from; None for a new run.
        training: for a training run, how it is evaluated, ended early and stepped.
        log: takes the metrics of each step; None if they go into the run folder alone.
    """

    steps: int
    folder: RunFolder
    saving: Saving | None
    start: Saved | None
    training: TrainingOptions
    log: MetricsLog | None = None

    def recorder(self, types: RowTypes, dt: float = 1.0) -> Recorder:
        """Return the recorder of these addresses: it writes into the run folder, from the first process."""
        if not (types and is_first()):
            return MemoryRecorder({}, dt)
        rows = self.start.collected.get(RECORDED_ROWS) if self.start else None
        return ZarrRecorder(
            self.folder.path / RECORDING,
            types,
            dt,
            keep_before=self.start.step if self.start else None,
            keep_rows=None if rows is None else int(rows),
            beside=True,
        )


class RunKind(abc.ABC):
    """How the recipes of one kind are run. `run_prepared` does what is the same for all kinds.

    Args:
        prepared: the recipe with its program.

    Attributes:
        identity: entries of the config that must not change for a run to be continued.
        results: files that a run of this kind leaves in its folder besides those of every run.
        collects: whether something on the host is saved beside the state.
        extras: packages that a run can need, each with the extra that brings it for this kind.
    """

    identity: ClassVar[tuple[str, ...]] = ("recipe", "seed", "record", "stride")
    results: ClassVar[tuple[str, ...]] = ()
    collects: ClassVar[bool] = False
    extras: ClassVar[Mapping[str, str]] = {"matplotlib": "train", "orbax": "train", "tensorstore": "zarr"}

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.recipe, self.program = prepared, prepared.recipe, prepared.program

    @property
    def step_unit(self) -> int:
        """Saves happen at multiples of this number of steps."""
        return 1

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """Return what `config.json` says of this kind of run in addition."""

    def check(self, steps: int) -> None:  # noqa: B027  # not every kind has something to check
        """Raise if the recipe cannot be run; nothing in the run folder has been touched."""

    def check_installed(self, *, saves: bool, log: Sequence[str] = ()) -> None:
        """Raise if a package is missing that the run would need at its end, or on its way; nothing is written yet.

        Args:
            saves: whether checkpoints are saved or restored.
            log: what the metrics are logged to.

        Raises:
            RecipeError: with all of them, and what installs them.
        """
        if log:
            from outlay.train.metrics_log import check_loggers  # most runs do without

            check_loggers(log)
        needs = {"matplotlib": "figures"}
        needs |= {"tensorstore": "recordings"} if self.recipe.record else {}
        needs |= {"orbax": "checkpoints"} if saves else {}
        missing = [name for name in needs if find_spec(name) is None]
        if missing:
            words = ", ".join(f"{name} for its {needs[name]}" for name in missing)
            extras = ",".join(dict.fromkeys(self.extras[name] for name in missing))
            raise RecipeError(
                f"a run of {self.recipe.name} needs {words}, and {plural(len(missing), 'that is', 'those are')} not "
                f"installed\n  fix: pip install 'outlay[{extras}]'"
            )

    def for_steps(self, num_steps: int) -> RunKind:
        """Return the kind with the program that a run of so many more steps needs; most programs take any number."""
        return self

    def check_training(self, options: TrainingOptions) -> None:
        """Raise if the run cannot be evaluated, ended early and stepped in this way; only training can.

        Raises:
            RecipeError: it cannot.
        """
        if given := [name for name, value in vars(options).items() if value is not None]:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise RecipeError(
                f"{names} is for recipes that are trained, and {self.recipe.name!r} is not"
                f"\n  fix: leave out {names}; in Python, {', '.join(f'{name}=' for name in given)}"
            )

    def check_saving(self, every: int) -> None:  # noqa: B027
        """Raise if a run cannot be saved at this interval.

        Raises:
            CheckpointError: it cannot.
        """

    @abc.abstractmethod
    def run(self, setup: RunSetup) -> Result:
        """Take the steps, and leave the results and the report in the run folder.

        Raises:
            ResultNotWritten: the steps were taken, but the result cannot be written.
        """

    def result_facts(self, setup: RunSetup, seconds: float, recorded: Sequence[str], num_rows: int) -> dict[str, Any]:
        """Return what a `Result` says of every run."""
        mesh = self.program.plan.mesh
        return {
            "recipe": self.recipe.name,
            "layout": self.prepared.layout_name,
            "mode": self.program.mode,
            "devices": str(mesh),
            "simulated": mesh.kind == "simulated",
            "num_steps": setup.steps,
            "resumed_after": setup.start.step if setup.start else 0,
            "seconds": seconds,
            "recorded": tuple(recorded),
            "num_rows": num_rows,
            "folder": str(setup.folder.path),
        }


@dataclass(frozen=True, kw_only=True)
class Result(Report, abc.ABC):
    """The result of a finished run: facts that print themselves.

    Attributes:
        recipe: the recipe's name.
        layout: the layout's name.
        mode: how it was executed.
        devices: what it ran on, in words.
        simulated: whether the devices were simulated, so that times say nothing about speed.
        num_steps: steps taken, including those before it was continued.
        resumed_after: the step that the run was continued after; 0 for one from the start.
        seconds: the time of the steps, without compiling.
        recorded: the addresses that were recorded.
        num_rows: recorded steps.
        folder: the run folder.
    """

    recipe: str
    layout: str
    mode: str
    devices: str
    simulated: bool
    num_steps: int
    resumed_after: int
    seconds: float
    recorded: tuple[str, ...]
    num_rows: int
    folder: str

    @property
    @abc.abstractmethod
    def facts(self) -> dict[str, str]:
        """Return the result in words, by name, for people."""

    @property
    def shown(self) -> str:
        """Return further text that the run shows; empty for none."""
        return ""

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"{self.recipe} under {self.layout}"

    @property
    def continued(self) -> str:
        """Text to follow the number of steps; empty for a run from the start."""
        return f", continued after step {self.resumed_after}" if self.resumed_after else ""

    @property
    def caveat(self) -> str:
        """Text to follow every time."""
        return " (simulated devices: this is not a speed)" if self.simulated else ""

    @property
    def recorded_in_words(self) -> str:
        """How much was recorded; empty for nothing."""
        if not self.recorded:
            return ""
        return f"{counted(self.num_rows, 'row')} of {counted(len(self.recorded), 'address', 'addresses')}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**asdict(self), "recorded": list(self.recorded)}

    def _in_short(self) -> str:
        return f"{self.title}, {counted(self.num_steps, 'step')} on {self.devices}, folder {self.folder}"

    def _page(self) -> Page:
        facts = Facts({name.replace("_", " "): words for name, words in self.facts.items()})
        report = Line(f"The whole report: {self.folder}/report.html")
        shown = [Code(self.shown)] if self.shown else []
        return Page(self.title, [facts, *shown, report])

    def __str__(self) -> str:
        lines = [f"{name:<9} {words}" for name, words in self.facts.items()]
        folder = f"run folder {self.folder}, report {self.folder}/report.html (open it in a browser)"
        shown = ["", self.shown, ""] if self.shown else []
        return "\n".join([*lines, *shown, folder])


class ResultNotWritten(RunFolderError):
    """A run ended well, but its folder could not be written to at the end.

    Attributes:
        result: the result of the run.
    """

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


@contextlib.contextmanager
def result_not_lost(result: Result) -> Iterator[None]:
    """Attach the result of the run to the error if something cannot be written after the last step.

    Raises:
        ResultNotWritten: something cannot be written.
    """
    try:
        yield
    except RunFolderError as error:
        raise ResultNotWritten(f"the run ended well, but {error}", result) from error
