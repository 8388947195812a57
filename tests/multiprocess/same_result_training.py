"""Tiny `lm`, trained whole, and trained on from where another arrangement was interrupted."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

import outlay
from outlay.models.transformer.published import MODELS
from outlay.recipes.lm import lm
from outlay.recipes.recipe import Recipe

NUM_STEPS = 6
SAVE_EVERY = 2
MAX_SAMPLED = 3
TINY = dataclasses.replace(MODELS["tiny"].config, width=32, num_layers=2, num_heads=2, num_kv_heads=1, hidden=128)
SMALLER = {"MAX_SAMPLED": MAX_SAMPLED, "MODELS": {"tiny": dataclasses.replace(MODELS["tiny"], config=TINY)}}
"""What stands in `outlay.recipes.lm` while it is trained here: a step between processes costs by its bytes."""


def recipe() -> Recipe:
    return lm("tiny", sequence=16, batch=8)


@dataclasses.dataclass(frozen=True)
class CtrlC:
    """Batches, and Ctrl-C in place of one of them."""

    data: Any
    step: int

    def __getitem__(self, step: int) -> Any:
        if step == self.step:
            raise KeyboardInterrupt
        return self.data[step]


def program_of(recipe: Recipe, num_devices: int) -> outlay.Program:
    mesh = outlay.mesh(data=num_devices, devices=jax.devices()[:num_devices])
    layout = recipe.layouts["dp" if num_devices == 1 else "fsdp"]
    return outlay.program(recipe.step, recipe.init, recipe.data[0], layout=layout, mesh=mesh)


def sample(recipe: Recipe, program: outlay.Program) -> str:
    """What an untrained model writes, which is the same to the bit everywhere."""
    return recipe.sample(program, program.init(jax.random.key(recipe.seed))) if recipe.sample else ""


def train(recipe: Recipe, program: outlay.Program) -> list[float]:
    """The losses of a run that nothing interrupts, and in which each process reads its own examples only."""
    done = outlay.fit(
        program, recipe.data.on(program), steps=NUM_STEPS, key=jax.random.key(recipe.seed), progress=False
    )
    return [metrics["loss"] for metrics in done.history]


def train_on(recipe: Recipe, program: outlay.Program, folder: Path, stop_at: int) -> int:
    """Continue the run in a folder until Ctrl-C; the step that it was continued after."""
    checkpoints = outlay.Checkpoints(folder / "checkpoints")
    start = checkpoints.restore(program) if checkpoints.exist() else None
    try:
        outlay.fit(
            program,
            CtrlC(recipe.data, stop_at),
            steps=NUM_STEPS,
            key=jax.random.key(recipe.seed),
            metrics_path=folder / "metrics.jsonl",
            progress=False,
            checkpoints=checkpoints,
            checkpoint_every=SAVE_EVERY,
            start=start,
        )
    except KeyboardInterrupt:
        checkpoints.wait()
    return start[0] if start else 0
