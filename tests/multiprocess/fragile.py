"""Recipes that real processes run, and something that happens to one of them on the way."""

import dataclasses
import os
import signal
import time
from pathlib import Path

import jax
from tests.unit.recipes import small

from outlay.jobs.current_job import joined
from outlay.recipes.recipe import Recipe

EVENT_AT = 7


class Killed:
    """Data in whose middle process 1 is killed, the first time that the job is started."""

    def __init__(self, data) -> None:
        self.data = data

    def __getitem__(self, step):
        job = joined()
        if step == EVENT_AT and job and job.process == 1 and not job.restart:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.data[step]


class KilledAlone(Killed):
    """Data in whose middle the only process is killed, unless there is a file that says that this has happened."""

    def __getitem__(self, step):
        if step == EVENT_AT and not Path("again").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return self.data[step]


class Unhurried(Killed):
    """Data that leaves time for a signal; process 0 says when it may come."""

    def __getitem__(self, step):
        if step == EVENT_AT and jax.process_index() == 0:
            Path("now").touch()
        time.sleep(0.05)
        return self.data[step]


def killed_once() -> Recipe:
    recipe = small.line()
    return dataclasses.replace(recipe, data=Killed(recipe.data))


def killed_alone() -> Recipe:
    recipe = small.line()
    return dataclasses.replace(recipe, data=KilledAlone(recipe.data))


def unhurried() -> Recipe:
    recipe = small.line()
    return dataclasses.replace(recipe, data=Unhurried(recipe.data))


def confused() -> Recipe:
    """Another one in each process, as where a file was changed on one of the machines."""
    return dataclasses.replace(small.line(), seed=int(os.environ["OUTLAY_PROCESS_ID"]))
