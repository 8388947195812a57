"""The options of a run, each declared once: `outlay run` is made of them, and `outlay.run` takes them as keywords."""

# Without `from __future__ import annotations`: the annotations are values, which hold the options.
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from outlay.core.option import Option, given_in, options_in, words_of_given

if TYPE_CHECKING:
    from outlay.train.patience import Patience


@dataclass(frozen=True)
class RunOption(Option):
    """An option of a run.

    Attributes:
        is_common: all processes of a job must have the same value.
        is_continued: the config of the run has it, and a run that is continued takes it from there.
        is_of_training: only recipes that are trained have it.
    """

    is_common: bool = False
    is_continued: bool = False
    is_of_training: bool = False


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a recipe is run: its steps, what it saves, records and logs, and in which processes.

    A kind of run with options of its own extends the class.
    """

    steps: Annotated[
        int | None,
        RunOption(
            "Steps to take; by default the recipe's own number.",
            "N",
            unit="steps",
            minimum=1,
            python="Those before a run is continued count; None is then the earlier run's number.",
            is_common=True,
        ),
    ] = None
    run_folder: Annotated[
        Path | str | None,
        RunOption(
            "The run folder; by default runs/RECIPE.",
            "DIR",
            kind=Path,
            python="It gets config, plan, metrics, checkpoints, pictures and report.",
        ),
    ] = None
    force: Annotated[bool, RunOption("Replace the run that is in the run folder.")] = False
    checkpoint_every: Annotated[
        int | None,
        RunOption("Save a checkpoint every N steps and at the end.", "N", unit="steps", minimum=1, is_common=True),
    ] = None
    evaluate_every: Annotated[
        int | None,
        RunOption(
            "Evaluate on held-out data every N steps, not only at the end.",
            "N",
            unit="steps",
            minimum=1,
            python="For a recipe that is trained.",
            is_common=True,
            is_continued=True,
            is_of_training=True,
        ),
    ] = None
    patience: Annotated[
        "int | Patience | None",
        RunOption(
            "End training when evaluate.loss has not improved for N evaluations; with --evaluate-every.",
            "N",
            kind=int,
            unit="evaluations",
            minimum=1,
            python="An `outlay.train.Patience` says which metric, and by how much.",
            is_common=True,
            is_continued=True,
            is_of_training=True,
        ),
    ] = None
    steps_per_call: Annotated[
        int | None,
        RunOption(
            "Take N steps in one compiled call; for small steps.",
            "N",
            unit="steps",
            minimum=1,
            python="For a recipe that is trained; see `outlay.fit`.",
            is_common=True,
            is_continued=True,
            is_of_training=True,
        ),
    ] = None
    log: Annotated[
        str | Sequence[str] | None,
        RunOption(
            "Log the metrics to it too; repeatable. off ends that of the run that is continued.",
            "tensorboard|wandb|mlflow",
            kind=list,
            python="For a recipe that is trained; see `outlay.train.MetricsLog`.",
            is_common=True,
            is_continued=True,
            is_of_training=True,
        ),
    ] = None
    resume: Annotated[
        bool,
        RunOption(
            "Continue the run in the run folder, if there is one, from its last checkpoint.",
            is_common=True,
        ),
    ] = False
    record: Annotated[
        str | Sequence[str],
        RunOption(
            "What to record: leaves such as params.**.bias, or addresses of the recipe; repeatable.",
            "PATTERN",
            kind=list,
            python="As the recipe says if there are none.",
        ),
    ] = ()
    stride: Annotated[int | None, RunOption("Record every N steps.", "N", unit="steps", minimum=1)] = None
    processes: Annotated[
        int | None,
        RunOption("Run in P processes, which share the devices evenly.", "P", unit="processes", minimum=1),
    ] = None
    max_restarts: Annotated[
        int,
        RunOption(
            "With --processes: after a failure, start again from the last checkpoint, up to N times.",
            "N",
            unit="starts",
            minimum=0,
        ),
    ] = 0
    watch: Annotated[
        bool,
        RunOption("Serve a page on this machine that follows the run, as outlay watch; see stderr."),
    ] = False
    in_order: Annotated[
        bool,
        RunOption("Show the output by steps: of each step process 0's lines, then 1's, ..."),
    ] = False
    stuck_after: Annotated[
        float | None,
        RunOption(
            "End the job, with the stacks of all processes, if one gives no sign of life (a step or a line of "
            "output) for so long. By default 5 minutes between steps, and 20 times the longest pause so far.",
            "SECONDS|off",
            unit="seconds",
            python="`math.inf` for never.",
        ),
    ] = None
    start_within: Annotated[
        float | None,
        RunOption(
            "The same until the first step is finished; by default --stuck-after, else half an hour.",
            "SECONDS|off",
            unit="seconds",
        ),
    ] = None

    def words(self) -> list[str]:
        """Return the options that the user has given, as they are written on a command line.

        Raises:
            RecipeError: some are objects that only this process has.
        """
        given = given_in(self)
        return words_of_given(given | {"log": self.loggers or ["off"]} if "log" in given else given)

    @property
    def patterns(self) -> Sequence[str]:
        """The patterns of what is recorded."""
        return [self.record] if isinstance(self.record, str) else self.record

    @property
    def loggers(self) -> tuple[str, ...] | None:
        """What the metrics are logged to beside the run folder; None if nothing was said, and nothing is loaded."""
        if self.log is None:
            return None
        from outlay.train.log_names import log_names  # most runs do without

        return log_names(self.log)

    @property
    def rule(self) -> "Patience | None":
        """When training ends early."""
        if self.patience is None:
            return None
        from outlay.train.patience import Patience  # most runs do without

        return Patience(self.patience) if isinstance(self.patience, int) else self.patience

    @property
    def of_job(self) -> list[str]:
        """The given options that only a job of several processes has, by name."""
        return [name for name in ("max_restarts", "in_order", "stuck_after", "start_within") if getattr(self, name)]

    def given_of_training(self) -> list[str]:
        """Return the names of the given options that only recipes that are trained have."""
        return [name for name in given_in(self) if _option(self, name).is_of_training]

    def in_common(self) -> dict[str, Any]:
        """Return what must be the same in all processes of a job."""
        return {name: value for name, value in self._plain().items() if _option(self, name).is_common}

    def config(self) -> dict[str, Any]:
        """Return what the config of the run says of its options, of those that are given."""
        return {
            name: value
            for name, value in self._plain().items()
            if _option(self, name).is_continued and value is not None
        }

    def continuing(self, earlier: Mapping[str, Any], *, steps: int) -> Self:
        """Return the options of a run in numbers, with those that were not given as in the run that it continues.

        Args:
            earlier: the config of that run; empty for a new one.
            steps: the number of steps that a new run takes by default.
        """
        before = {
            name: earlier.get(name)
            for name in options_in(type(self))
            if _option(self, name).is_continued and getattr(self, name) is None
        }
        if rule := before.get("patience"):
            from outlay.train.patience import Patience

            before["patience"] = Patience(**rule)
        if self.steps is None:
            before["steps"] = int(earlier.get("num_steps", steps))
        if self.checkpoint_every is None:
            before["checkpoint_every"] = earlier.get("checkpoint_every")
        return dataclasses.replace(self, **before)

    def _plain(self) -> dict[str, Any]:
        """Return the options by name as JSON has them."""
        values = {name: getattr(self, name) for name in options_in(type(self))}
        return values | {"patience": self.rule and dataclasses.asdict(self.rule), "log": self.loggers}


def _option(options: RunOptions, name: str) -> RunOption:
    """Return an option of a run; those of its program have no such marks."""
    option = options_in(type(options))[name].option
    return option if isinstance(option, RunOption) else RunOption(option.help)
