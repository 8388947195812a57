"""The programs of a Brain that this process has made: a sweep over seeds, inputs or states compiles once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import Mesh

from outlay import Layout, Program
from outlay.brain.brain import Brain
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.kit import Prepared, settings

MOST = 8
"""The most programs that are stored for a Brain, those used last."""


@dataclass
class BrainPrograms:
    """What was compiled for one Brain, by what its program depends on.

    Attributes:
        stored: the layout's name, and the program of each number of steps in a call.
    """

    stored: OrderedDict[Any, tuple[str, dict[int, Program]]] = field(default_factory=OrderedDict)

    def prepared(
        self,
        recipe: BrainRecipe,
        layout: str | Layout | None,
        mesh: Mesh | None,
        mode: str | None,
        prepare: Callable[[], Prepared],
    ) -> tuple[Prepared, dict[int, Program]]:
        """Return a recipe with its program, and the programs of all numbers of steps in a call.

        Args:
            recipe: the recipe. Its seed, inputs and number of steps are none that a program depends on.
            layout: the layout asked for.
            mesh: the mesh asked for.
            mode: the mode asked for.
            prepare: makes the program.
        """
        watched = tuple(trigger.port for trigger in recipe.moments.triggers)
        key = (recipe.record, recipe.stride, recipe.chunk, recipe.kernel, watched, layout, mesh, mode)
        key = (*key, tuple(sorted((name, repr(value)) for name, value in settings().items())))
        try:
            known = self.stored.get(key)
        except TypeError:  # a layout of policies that have no hash
            made = prepare()
            return made, {recipe.chunk: made.program}
        if known is None:
            made = prepare()
            known = made.layout_name, {recipe.chunk: made.program}
        self.stored[key] = known
        self.stored.move_to_end(key)
        while len(self.stored) > MOST:
            self.stored.popitem(last=False)
        name, programs = known
        return Prepared(recipe, name, programs[recipe.chunk]), programs


_PROGRAMS = "_programs"


def programs_of(brain: Brain) -> BrainPrograms:
    """Return the programs of a Brain."""
    # With the Brain, like what it caches itself: they refer to it, and go when it goes.
    return vars(brain).setdefault(_PROGRAMS, BrainPrograms())
