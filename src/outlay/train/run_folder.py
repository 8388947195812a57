"""The folder that a run leaves behind: what was run, where everything lived, how it went."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlay.core.errors import RunFolderError
from outlay.layout.plan import Plan
from outlay.train.loss_plot import loss_plot

_FILES = ("config.json", "plan.json", "metrics.jsonl", "loss.png", "sample.txt", "report.html")


class RunFolder:
    """`config.json`, `plan.json`, `metrics.jsonl`, `loss.png`, `sample.txt` and `report.html` of one run.

    Args:
        path: the folder; made if it is not there.
        force: replace the run that is there. Only the files above are replaced; any others stay.

    Raises:
        RunFolderError: something is there already and `force` was not given; nothing of it was touched.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self.path = path
        if path.is_dir():
            _refuse_full(path, force)
            for name in _FILES:
                (path / name).unlink(missing_ok=True)
        elif path.exists():
            raise RunFolderError(f"{path} is a file, not a folder\n  cure: choose another folder for this run")
        path.mkdir(parents=True, exist_ok=True)

    @property
    def metrics_path(self) -> Path:
        """The metrics of each step, one JSON object a line."""
        return self.path / "metrics.jsonl"

    def write_config(self, config: Mapping[str, Any]) -> None:
        """What was run and with which choices."""
        self._write("config.json", json.dumps(config, indent=1) + "\n")

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
        path.write_text(text, encoding="utf-8")
        return path


def _refuse_full(path: Path, force: bool) -> None:
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
