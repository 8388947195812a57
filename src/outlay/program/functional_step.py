"""A step and an init over arrays, made of a step and an init whose state holds NNX objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from outlay.core.array_leaves import merge_objects, split_objects
from outlay.core.error_types import ProgramError
from outlay.core.quantities import counted
from outlay.core.shared_objects import Objects, rearranged
from outlay.core.static_facts import listed_differences, static_differences
from outlay.program.abstract import name_of, named


class FunctionalStep:
    """Gives a step its NNX objects, whole and each once, and takes the arrays out of what it returns.

    Args:
        step: the user's step, over a state that holds objects.
        init: the user's init, which makes them.
        donate: whether the step returns a new state.

    Attributes:
        objects: the objects of the state without their arrays, as init first made them; None if there are none.
        step: the step over arrays. Given a state with objects, it is the user's own.
        init: the init that returns arrays.
    """

    def __init__(
        self, step: Callable[..., Any], init: Callable[[Any], Any], *, donate: bool, objects: Objects | None = None
    ) -> None:
        self.objects = objects
        self._step, self._init, self._donate = step, init, donate
        # Functions, since a step has a name and a signature, which checks and messages read.
        self.step = functools.wraps(step, updated=())(lambda state, batch: self._run(state, batch))
        self.step.__name__ = name_of(step)
        self.init = functools.wraps(init, updated=())(lambda key: self._start(key))

    def for_objects(self, objects: Objects) -> FunctionalStep:
        """Return the same step for objects with other flags, such as a model that is evaluated."""
        return FunctionalStep(self._step, self._init, donate=self._donate, objects=objects)

    def _start(self, key: Any) -> Any:
        objects, arrays = split_objects(self._init(key))
        # Each call makes other functions, as those of an optimizer are; a state has those of the first. What is around
        # the objects may have flags, too, and those that are asked for are not always those of init.
        self.objects = self.objects or objects
        return arrays if objects is None else rearranged(arrays, objects, self.objects)

    def _run(self, state: Any, batch: Any) -> Any:
        objects = self.objects
        if objects is None or split_objects(state)[0] is not None:
            return self._step(state, batch)
        whole = merge_objects(objects, state)
        result = self._step(whole, batch)
        if not self._donate or not isinstance(result, tuple) or len(result) != 2:
            return result
        returned, arrays = split_objects(result[0])
        if returned != objects:
            self._check_unchanged(merge_objects(objects, state), result[0])
        return arrays, result[1]

    def _check_unchanged(self, before: Any, after: Any) -> None:
        """Raise if a step changes what is compiled into it, such as a flag of its model."""
        if differences := static_differences(before, after):
            these = counted(len(differences), "attribute that is no array", "attributes that are no arrays")
            raise ProgramError(
                "\n".join(
                    [
                        f"{named(self._step)} returns a state with {these} changed:",
                        *listed_differences(differences, "took", "returned"),
                        "  fix: set them in init, or set them back before it returns; what changes from step to step "
                        "is an array, such as nnx.Variable(jnp.zeros((), int))",
                    ]
                )
            )
