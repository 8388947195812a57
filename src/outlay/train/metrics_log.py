"""Send the metrics of a run on, step by step, to TensorBoard, Weights & Biases or MLflow."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from outlay.core.error_types import RecipeError
from outlay.core.output_file import open_plain, write_whole
from outlay.core.public_names import called_as
from outlay.core.terminal_text import visible
from outlay.devices.mesh_info import is_first
from outlay.train.log_names import log_names
from outlay.train.loggers import LOGGERS, Logger
from outlay.train.run_folder import LOG_FILE, TENSORBOARD


class MetricsLog:
    """The metrics of a run in TensorBoard, Weights & Biases or MLflow: an `on_step` of `outlay.fit`.

    Each number of a step becomes a curve under its name in the metrics file; of a metric with several numbers, each
    becomes one, as in `counts.0`. Only the first process of a job writes. A service that fails on the way is left out
    from then on, with a warning: no training ends for it, and the metrics file has everything.

    Args:
        to: one or more of `tensorboard`, `wandb` and `mlflow`.
        folder: the folder of the run, whose name becomes that of the run. TensorBoard's files go into its folder
            `tensorboard`, and `log.json` gets the ids by which a run goes on in the other two. Where these keep their
            own files, and who is logged in, is up to them and to their variables, such as `WANDB_MODE`.
        project: the project of W&B and the experiment of MLflow, unless their variables name one.
        config: what else is known of the run, such as its seed; it becomes the configuration there.
        after: the step after which the run continues; what was logged of later steps is replaced, or left as it is
            where a service cannot replace it.

    Raises:
        ArgumentError: another name.
        RecipeError: a package is not installed, or a service refuses the run.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> step = lambda state, batch: (state + batch.sum(), {"loss": batch.mean()})
        >>> program = outlay.program(step, lambda key: 0.0, np.ones(8), layout=outlay.data_parallel(), mesh=mesh)
        >>> with outlay.train.MetricsLog("tensorboard", folder="runs/mine", config={"seed": 0}) as log:
        ...     done = outlay.fit(program, [np.ones(8)] * 2, steps=2, key=None, on_step=log, progress=False)
        >>> [path.name for path in Path("runs/mine").iterdir()]
        ['tensorboard']
    """

    @called_as(
        'outlay.train.MetricsLog("tensorboard", folder="runs/mine")',
        logdir="folder=",
        log_dir="folder=",
        path="folder=",
    )
    def __init__(
        self,
        to: str | Sequence[str],
        *,
        folder: Path | str,
        project: str = "outlay",
        config: Mapping[str, Any] | None = None,
        after: int = 0,
    ) -> None:
        names = log_names(to)
        check_loggers(names)
        self._folder, self._loggers = Path(folder), dict[str, Logger]()
        self._is_begun = False
        if not is_first():
            return
        ids = _ids_in(self._folder) if after else {}
        for name in names:
            try:
                self._loggers[name] = LOGGERS[name](self._folder, project, config or {}, after, ids.get(name))
            except Exception as error:
                self.close(failed=True)
                raise RecipeError(
                    f"the run cannot be logged to {name}: {_in_words(error)}"
                    f"\n  fix: what {name} asks for, or leave out --log {name}"
                ) from error

    def __repr__(self) -> str:
        return f"<MetricsLog of {self._folder} to {', '.join(self._loggers) or 'nothing'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def __call__(self, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a step.

        Args:
            metrics: numbers, or lists of numbers, by name; `step` among them.
        """
        self._note_ids()
        step = int(metrics["step"])
        numbers = {name: number for key in metrics if key != "step" for name, number in _numbers(key, metrics[key])}
        for name in list(self._loggers):
            try:
                self._loggers[name].log(step, numbers)
            except Exception as error:
                self._give_up(name, f"the metrics of step {step} and later are not logged to it", error)

    def close(self, *, failed: bool = False) -> None:
        """Write what is left, and end the run in the services.

        Args:
            failed: whether the run has failed, or was interrupted.
        """
        while self._loggers:
            name, logger = self._loggers.popitem()
            try:
                logger.close(failed)
            except Exception as error:
                self._give_up(name, "its last metrics may be missing", error)

    def _note_ids(self) -> None:
        """Note the ids of the run, once it takes steps, so that it can go on under them."""
        if self._is_begun:
            return
        self._is_begun = True
        if ids := {name: logger.id for name, logger in self._loggers.items() if logger.id}:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / LOG_FILE, json.dumps(ids) + "\n", through_links=False)

    def _give_up(self, name: str, what: str, error: Exception) -> None:
        self._loggers.pop(name, None)
        warnings.warn(f"{name} has failed, and {what}: {_in_words(error)}", stacklevel=3)


def check_loggers(names: Sequence[str]) -> None:
    """Raise if a package is missing that a log is written with; nothing is imported.

    Args:
        names: what is logged to.

    Raises:
        RecipeError: with all of them, and what installs them.
    """
    if missing := [name for name in names if not _is_installed(LOGGERS[name].package)]:
        packages = " and ".join(LOGGERS[name].package for name in missing)
        install = " ".join("'outlay[tensorboard]'" if name == TENSORBOARD else name for name in missing)
        raise RecipeError(
            f"logging to {' and '.join(missing)} needs {packages}, which {'are' if missing[1:] else 'is'} not installed"
            f"\n  fix: pip install {install}"
        )


def _is_installed(package: str) -> bool:
    # A folder of that name is no package: W&B keeps its files in one, in the folder where it is called.
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def _numbers(name: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, list):
        return [number for place, each in enumerate(value) for number in _numbers(f"{name}.{place}", each)]
    return [(name, float(value))]


def _ids_in(folder: Path) -> dict[str, str]:
    """Read the ids of the run that is continued; without any, the services get a new run."""
    try:
        with open_plain(folder / LOG_FILE) as file:  # a run folder may come from anywhere
            ids = json.loads(file.read())
        return {name: each for name, each in ids.items() if name in LOGGERS and isinstance(each, str)}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {visible(str(error).strip()[:500])}"
