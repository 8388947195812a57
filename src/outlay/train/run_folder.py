"""The folder that a run leaves behind: what was run, where everything lived, how it went."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlay.core.errors import RunFolderError
from outlay.layout.plan import Plan
from outlay.train.loss_plot import loss_plot
from outlay.train.together import is_first, wait_for_all

_CONFIG = "config.json"
_CHECKPOINTS = "checkpoints"
_FILES = (_CONFIG, "plan.json", "metrics.jsonl", "loss.png", "sample.txt", "report.html")


class RunFolder:
    """`config.json`, `plan.json`, `metrics.jsonl`, `loss.png`, `sample.txt`, `report.html`, `checkpoints/` of one run.

    In a job of several processes every one of them opens the folder, and the first alone writes to it.

    Args:
        path: the folder; made if it is not there.
        force: replace the run that is there. Only the files above and the checkpoints are replaced; any others stay.
        resume: continue the run that is there, or begin one where there is none.

    Attributes:
        earlier: the config of the run that is continued; None for a new run.

    Raises:
        RunFolderError: something is there already that is not to be replaced or continued; nothing of it was touched.
    """

    def __init__(self, path: Path, *, force: bool = False, resume: bool = False) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file, not a folder\n  cure: choose another folder for this run")
        self.earlier: dict[str, Any] | None = _config_of(path) if resume else None
        if is_first():
            if self.earlier is None:
                _make_empty(path, force)
            path.mkdir(parents=True, exist_ok=True)
        wait_for_all("every process has read what is in the run folder")

    @property
    def metrics_path(self) -> Path | None:
        """The metrics of each step, one JSON object a line; None in a process that does not write."""
        return self.path / "metrics.jsonl" if is_first() else None

    @property
    def checkpoints_path(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.path / _CHECKPOINTS

    def write_config(self, config: Mapping[str, Any]) -> None:
        """What was run and with which choices."""
        self._write(_CONFIG, json.dumps(config, indent=1) + "\n")

    def write_plan(self, plan: Plan) -> None:
        """Where every array lived; `Plan.from_json` reads it."""
        self._write("plan.json", plan.to_json() + "\n")

    def write_loss(self, history: Sequence[Mapping[str, float]]) -> Path:
        """The loss over steps as a picture."""
        path = self.path / "loss.png"
        loss_plot(history).savefig(path, dpi=150)
        return path

    def write_sample(self, text: str) -> Path:
        """What the recipe shows of the trained state."""
        return self._write("sample.txt", text)

    def write_report(self, html: str) -> Path:
        """The page that puts it together."""
        return self._write("report.html", html)

    def _write(self, name: str, text: str) -> Path:
        path = self.path / name
        if not is_first():
            return path
        written = self.path / f"{name}.partial"
        written.write_text(text, encoding="utf-8")
        written.replace(path)  # a kill in between leaves what was there: without its config a run cannot be continued
        return path


def _config_of(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFolderError(
            f"{path / _CONFIG} is no config of a run: {error}\n  cure: put it back, or --force to begin the run anew"
        ) from error


def _make_empty(path: Path, force: bool) -> None:
    _refuse_full(path, force)
    for name in _FILES:
        (path / name).unlink(missing_ok=True)
    if (path / _CHECKPOINTS).is_dir():
        shutil.rmtree(path / _CHECKPOINTS)


def _refuse_full(path: Path, force: bool) -> None:
    if not path.is_dir():
        return
    found = sorted(entry.name for entry in path.iterdir())
    if not found or force:
        return
    number = 2
    while (free := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    listed = ", ".join(found[:6]) + (", …" if len(found) > 6 else "")
    raise RunFolderError(
        f"the run folder {path} exists and holds {len(found)} file(s): {listed}\n"
        f"  cure: --run-dir {free} for a new one, or --force to replace the run in it"
    )
