"""What a run of a Brain leaves in its run folder, besides what every run does."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outlay.brain.plots import bin_steps, binned_rates
from outlay.brain.run.activity import population_names
from outlay.brain.run.brain_run import BrainRun
from outlay.core.output_file import picture_bytes
from outlay.train.run_folder import RunFolder
from outlay.train.together import is_first, wait_for_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ("raster", "rates", "potentials", "weights", "graph")
"""In the order in which they are looked at."""
COLLECTED = "collected"
"""The folder of what is saved beside checkpoints."""
_RECORDING, _RATES = "recording.zarr", "rates.csv"


class BrainFolder:
    """`recording.zarr`, `rates.csv` and pictures in the folder of a run.

    Args:
        folder: the folder of the run, which has begun.
        goes_on: whether an earlier run of a Brain in it is gone on with; else what that left there is removed.
        records: whether the run records.
        saves: whether it saves.

    Raises:
        RunFolderError: something is in the way that Outlay did not write, or cannot be removed.
    """

    def __init__(self, folder: RunFolder, *, goes_on: bool, records: bool, saves: bool) -> None:
        self._folder = folder
        if is_first():
            for name in (_RATES, *(f"{name}.png" for name in PICTURES)):
                folder.remove(name)
            for name in () if goes_on else (_RECORDING, COLLECTED):
                folder.remove(name)
            for name, is_written in ((_RECORDING, records), (COLLECTED, saves)):
                if is_written:
                    folder.will_write(name)
        wait_for_all("the first process has emptied the run folder")

    @property
    def recording_path(self) -> Path:
        """The folder of the recording."""
        return self._folder.path / _RECORDING

    def write_figures(self, figures: Mapping[str, Figure]) -> dict[str, Path]:
        """The pictures as files, by name, in the order in which they are looked at."""
        return {
            name: self._folder.write(f"{name}.png", picture_bytes(figures[name]))
            for name in PICTURES
            if name in figures
        }

    def write_rates(self, run: BrainRun) -> Path:
        """The rate of each population over time: one row a bin, one column a population, in Hz."""
        dt = run.brain.dt
        per_bin = bin_steps(run.num_steps, dt)
        names = population_names(run.activity.num_neurons)
        columns = {
            name: binned_rates(run.activity.counts(port), run.activity.num_neurons[port], dt, per_bin)
            for port, name in names.items()
        }
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(["time_ms", *columns])
        times = next(iter(columns.values()))[0] if columns else []
        for row, time in enumerate(times):
            writer.writerow([f"{time:g}", *(f"{rates[row]:.3f}" for _, rates in columns.values())])
        return self._folder.write(_RATES, text.getvalue())
