"""TensorBoard, Weights & Biases and MLflow, each as a place that takes the numbers of a step."""

from __future__ import annotations

import abc
import json
import os
import re
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from outlay.train.log_names import LOG_NAMES
from outlay.train.run_folder import TENSORBOARD


class Logger(abc.ABC):
    """Takes the numbers of each step of a run.

    Args:
        folder: the folder of the run.
        project: what the run belongs to.
        config: what is known of it.
        after: the step that it continues after; 0 for a new run.
        id: the id of the run that it continues; None for a new one.

    Attributes:
        package: the package that it needs.
        id: what a later start finds the run by; empty if it needs nothing.
    """

    package: ClassVar[str]
    id: str = ""

    @abc.abstractmethod
    def __init__(self, folder: Path, project: str, config: Mapping[str, Any], after: int, id: str | None) -> None: ...

    @abc.abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a step, by name."""

    @abc.abstractmethod
    def close(self, failed: bool) -> None:
        """Write what is left, and end the run there."""


class _TensorBoard(Logger):
    """Files of events in the run folder; a start reads as the end of what was logged from its first step on."""

    package = "tensorboardX"

    def __init__(self, folder: Path, project: str, config: Mapping[str, Any], after: int, id: str | None) -> None:
        self._folder, self._config, self._after = folder / TENSORBOARD, config, after
        self._new_writer = import_module(self.package).SummaryWriter
        self._writer: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._writer is None:  # the folder is made by the first step, once the run that this one replaces is gone
            # Files are read by name, which has the seconds since 1970: the suffix orders those of one second.
            self._writer = self._new_writer(
                str(self._folder), purge_step=self._after + 1, flush_secs=2, filename_suffix=f".{self._after:012}"
            )
            text = json.dumps(self._config, indent=1, default=str).replace("\n", "\n    ")
            self._writer.add_text("config", f"    {text}", self._after + 1)
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def close(self, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class _Wandb(Logger):
    """A run of Weights & Biases, online or not as `WANDB_MODE` says."""

    package = "wandb"

    def __init__(self, folder: Path, project: str, config: Mapping[str, Any], after: int, id: str | None) -> None:
        self._run = import_module(self.package).init(
            project=os.environ.get("WANDB_PROJECT") or project,
            name=os.environ.get("WANDB_NAME") or folder.resolve().name,
            id=id,
            resume="allow" if id else None,
            config=dict(config),
        )
        self.id = str(self._run.id)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        # W&B takes no step twice. One that is taken again after a crash has the numbers that are there already.
        if step >= self._run.step:
            self._run.log(dict(numbers), step=step)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _Mlflow(Logger):
    """A run of MLflow, in the store that `MLFLOW_TRACKING_URI` names or in MLflow's own default."""

    package = "mlflow"
    _between = 1.0  # seconds: a store may be a server, which must not be asked at every step

    def __init__(self, folder: Path, project: str, config: Mapping[str, Any], after: int, id: str | None) -> None:
        mlflow = import_module(self.package)
        self._client, self._entities = mlflow.MlflowClient(), mlflow.entities
        self._waiting: list[Any] = []
        self._sent, self._last = time.monotonic(), dict[str, int]()
        if id:
            self.id = id
            self._last = self._last_steps()
            self._client.update_run(id, status="RUNNING")
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if not experiment:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or project
            there = self._client.get_experiment_by_name(name)
            experiment = there.experiment_id if there else self._client.create_experiment(name)
        self.id = self._client.create_run(experiment, run_name=folder.resolve().name).info.run_id
        about = [self._entities.Param(_mlflow_name(name), str(value)[:500]) for name, value in _flat(config).items()]
        for start in range(0, len(about), 100):  # MLflow takes no more at once
            self._client.log_batch(self.id, params=about[start : start + 100])

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        named = {_mlflow_name(name): number for name, number in numbers.items()}
        # A step that is taken again after a crash has the numbers that are there already.
        new = [name for name in named if step > self._last.get(name, 0)]
        self._waiting += [self._entities.Metric(name, named[name], now, step) for name in new]
        if time.monotonic() - self._sent > self._between:
            self._send()

    def close(self, failed: bool) -> None:
        self._send()
        self._client.set_terminated(self.id, "FAILED" if failed else "FINISHED")

    def _send(self) -> None:
        while self._waiting:
            self._client.log_batch(self.id, metrics=self._waiting[:1000])  # likewise
            del self._waiting[:1000]
        self._sent = time.monotonic()

    def _last_steps(self) -> dict[str, int]:
        """Return the last step of each metric that the run has."""
        history, names = self._client.get_metric_history, self._client.get_run(self.id).data.metrics
        return {name: max(each.step for each in history(self.id, name)) for name in names}


LOGGERS: Mapping[str, type[Logger]] = dict(zip(LOG_NAMES, (_TensorBoard, _Wandb, _Mlflow), strict=True))
"""What a run can be logged to, by name."""


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values of nested dictionaries by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return flat


def _mlflow_name(name: str) -> str:
    """Return a name as MLflow takes it.

    >>> _mlflow_name("loss [%]"), _mlflow_name("evaluate.loss")
    ('loss ___', 'evaluate.loss')
    """
    return re.sub(r"[^\w\-. :/]", "_", name)
