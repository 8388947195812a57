"""Training as a kind of run: steps over batches, then the recipe's evaluation and sample."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from outlay.core.error_types import RecipeError
from outlay.core.quantities import counted
from outlay.core.user_code import users_traceback
from outlay.devices.mesh_info import is_first
from outlay.recipes.recipe_run import RecipeRun
from outlay.recipes.run_result import Result, result_not_lost
from outlay.report.run_page import run_page
from outlay.train.check_fit import check_evaluations, check_steps_per_call
from outlay.train.check_step import check_recordable
from outlay.train.data import Data, TrainData, num_of
from outlay.train.fit_result import Fit
from outlay.train.metrics_file import as_numbers, finite, metrics_in_words
from outlay.train.patience import EVALUATED
from outlay.train.recording import RecordedLeaves
from outlay.train.run_folder import RunFolder
from outlay.train.run_times import EVALUATE, current_times
from outlay.train.training_loop import train


class TrainingRun(RecipeRun):
    """Run a recipe by training it; see `RecipeRun`."""

    identity = (*RecipeRun.identity, "batch", "examples")
    results = ("loss.png", "sample.txt")

    def config(self) -> dict[str, Any]:
        """Return what a batch is, and how many examples there are."""
        data = self.recipe.data
        return {
            "batch": {
                leaf.path: {"shape": list(leaf.shape), "dtype": leaf.dtype}
                for leaf in self.program.plan.of_kind("batch")
            },
            "examples": num_of(data.examples) if isinstance(data, TrainData) else None,
        }

    @property
    def _is_recorded(self) -> bool:
        return bool(self.recipe.record) or type(self.recipe.stride) is not int or self.recipe.stride != 1

    def check(self) -> None:
        """Raise if the outputs of the step cannot be metrics, or the leaves to record cannot be recorded."""
        check_recordable(self.program.returned_outputs)
        if self._is_recorded:
            RecordedLeaves(self.program, self.recipe.record, self.recipe.stride)

    def check_options(self) -> None:
        """Raise if several steps per call are impossible, or if training is never evaluated although patience needs it.

        Raises:
            ProgramError: either.
        """
        check_steps_per_call(self.program, self.recipe.data, self.options.steps_per_call or 1)
        check_evaluations(self.recipe.evaluate, self.options.evaluate_every, self.options.rule)

    def take_steps(self) -> Result:
        """Train, evaluate, and write metrics, sample and report."""
        done = self._trained()
        problems: list[str] = []
        result = self._result(done, problems)
        with result_not_lost(result):
            self._write(self.folder, result, done.history)
        if problems:
            raise self._failed(problems)
        return result

    def _trained(self) -> Fit:
        """Take the steps, from the state that the run or the recipe begins with."""
        recipe, program = self.recipe, self.program
        start = (self.start.step, self.start.state) if self.start else None
        if start is None and recipe.begin is not None:
            start = (0, recipe.begin(program, program.init(jax.random.key(recipe.seed))))
        return train(
            program,
            self._data(),
            replace(self.options, record=recipe.record, stride=recipe.stride),
            key=jax.random.key(recipe.seed),
            metrics_path=self.folder.metrics_path,
            progress=is_first(),
            checkpoints=self.saving.checkpoints if self.saving else None,
            start=start,
            evaluate=recipe.evaluate if self.options.evaluate_every else None,
            on_step=self.log,
            recorder=self.recorder if self._is_recorded else None,
        )

    def _result(self, done: Fit, problems: list[str]) -> TrainingResult:
        """Return the result, with what the recipe's own functions say of the trained state; add their problems."""
        recipe = self.recipe
        last = done.history[-1] if done.history else {}
        held_out = {name.removeprefix(EVALUATED): last[name] for name in last if name.startswith(EVALUATED)}
        if not held_out:  # else the last step was evaluated on the way
            measured = self._measured(recipe.evaluate, "evaluate", _numbers, "a dictionary of numbers", done, problems)
            held_out = measured or {}
            if self.log and held_out:
                self.log({"step": last["step"], **{f"{EVALUATED}{name}": held_out[name] for name in held_out}})
        recorded = tuple(done.recording) if self._is_recorded else ()
        facts = self.result_facts(done.seconds, recorded, len(done.recording.steps))
        return TrainingResult(
            **{**facts, "num_steps": last.get("step", self.num_steps)},
            of_steps=self.num_steps,
            num_samples=done.num_samples,
            training={name: last[name] for name in last if not name.startswith(EVALUATED)},
            held_out=held_out,
            sample=self._measured(recipe.sample, "sample", _text, "a text", done, problems) or "",
        )

    def _write(self, folder: RunFolder, result: TrainingResult, history: Sequence[Mapping[str, Any]]) -> None:
        """Write the sample, and from the first process the curve of the loss and the report."""
        if result.sample:
            folder.write_sample(result.sample)
        if is_first():
            if "loss" in history[0]:
                folder.write_loss(history)
            page = run_page(result.title, result.facts, self.program.plan, folder.record(), sample=result.sample)
            folder.write_report(page)

    def _data(self) -> Data:
        """Return the batches; in a job of several processes, each reads its own part if the data can do that."""
        data = self.recipe.data
        return data.on(self.program) if isinstance(data, TrainData) and jax.process_count() > 1 else data

    def _measured(
        self,
        function: Callable[..., Any] | None,
        name: str,
        read: Callable[[Any], Any],
        returns: str,
        done: Fit,
        problems: list[str],
    ) -> Any:
        """Call the recipe's function with the trained state; if it fails, add a problem: training must not be lost."""
        if function is None:
            return None
        try:
            with current_times().spending(EVALUATE):
                return read(function(self.program, done.state))
        except Exception as error:
            reason = users_traceback(error) or f"{type(error).__name__}: {error}"
            where = getattr(function, "__qualname__", repr(function))
            problems.append(f"  {name} ({where}), which is to return {returns}:\n{textwrap.indent(reason, '    ')}")
            return None

    def _failed(self, problems: list[str]) -> RecipeError:
        folder = self.folder
        saved = (
            f"the state after the last step is in {folder.checkpoints_path}"
            if self.saving
            else "its state was not saved: --checkpoint-every N saves it before they are called"
        )
        done_well = f"the training itself is done, and its metrics, plan and report are in {folder.path}; {saved}"
        headline = f"what follows the last step of {self.recipe.name!r} failed"
        return RecipeError("\n".join([headline, *problems, done_well]))


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: as_numbers(value) for name, value in values.items()}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"it returned a {type(value).__name__}: {value!r:.60}")


@dataclass(frozen=True, kw_only=True)
class TrainingResult(Result):
    """The result of a finished training.

    Attributes:
        of_steps: the number of steps that were planned, before patience ended training.
        num_samples: samples seen.
        training: the metrics of the last step.
        held_out: the metrics on held-out data; empty if the recipe has none.
        sample: what the recipe shows of the trained state, as text; empty if nothing.
    """

    of_steps: int
    num_samples: int
    training: Mapping[str, float]
    held_out: Mapping[str, float]
    sample: str

    @property
    def facts(self) -> dict[str, str]:
        """Return the result in words, by name, for people."""
        rate = self.num_samples / self.seconds if self.seconds else 0.0
        ended = f" of {self.of_steps}, which patience ended" if self.num_steps < self.of_steps else ""
        steps = f"{counted(self.num_steps, 'step')}{ended}{self.continued}"
        facts = {
            "ran": f"{self.recipe}, layout {self.layout}, {self.devices}",
            "training": f"{metrics_in_words(self.training)} after {steps}",
            "held out": metrics_in_words(self.held_out),
            "time": f"{self.seconds:.1f} s, {rate:,.0f} samples/s{self.caveat}",
            "recorded": self.recorded_in_words,
        }
        return {name: words for name, words in facts.items() if words}

    @property
    def shown(self) -> str:
        """Return what the recipe shows of the trained state."""
        return self.sample

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**super().to_dict(), "training": finite(self.training), "held_out": finite(self.held_out)}
