"""The process that prices one candidate of `outlay.choose`: it gets a job as JSON and prints the answer as JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outlay.core.error_types import OutlayError

COMMAND = (sys.executable, "-P", "-m", __name__)
"""Starts this process; the job is its last argument. `-P` keeps the working folder from shadowing modules."""


@dataclass(frozen=True)
class Job:
    """What to price.

    Attributes:
        recipe: the recipe as the user named it.
        words: its options, those of the candidate included.
        layout: the name of one of its layouts, or a TOML file.
        mesh: the mesh as text.
        mode: how the step is executed; the recipe's own if None.
        target: the target as text.
        cache: the folder where prices are kept.
        parent: the process that searches, without which the answer is of no use; None if nobody waits for it.
        xla: options of the compiler: `preset`, `none` or a file of them.
    """

    recipe: str
    words: Sequence[str]
    layout: str
    mesh: str
    mode: str | None
    target: str
    cache: str
    parent: int | None = None
    xla: str = "preset"

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return asdict(self)


def answer(job: Job) -> dict[str, Any]:
    """The price of a candidate, or the error that Outlay raises for it."""
    from outlay.devices.simulated import simulate
    from outlay.devices.target import Target
    from outlay.recipes.find import find_recipe
    from outlay.recipes.prepare import prepare
    from outlay.search.cache import Cache
    from outlay.search.pricing import price

    try:
        target = Target.parse(job.target)
        if not target.is_compile_only:
            simulate(target.num_devices)  # before the recipe may start JAX
        recipe = find_recipe(job.recipe, job.words)
        prepared = prepare(
            recipe,
            layout=job.layout,
            mesh=job.mesh,
            mode=job.mode,
            target=job.target,
            compiler_options=job.xla if job.xla in ("preset", "none") else Path(job.xla),
        )
        found, was_kept = price(prepared.program, target, Cache(Path(job.cache)))
    except OutlayError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"price": found.to_dict(), "was_kept": was_kept}


def main() -> None:
    """Answer the job in the last argument; whatever else is printed goes to stderr."""
    job = Job(**json.loads(sys.argv[-1]))
    if job.parent is not None:
        threading.Thread(target=end_with_parent, args=(job.parent,), daemon=True).start()
    answers = os.dup(1)
    os.dup2(2, 1)  # what the user's recipe prints is no answer
    found = answer(job)
    with os.fdopen(answers, "w") as out:
        json.dump(found, out)


def end_with_parent(parent: int) -> None:
    """End this process when another one is its parent: a search that was killed cannot end its processes.

    Args:
        parent: the process that started this one.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
