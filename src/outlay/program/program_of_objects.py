"""A program whose state holds NNX objects: it is given objects and returns objects, and arrays run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlay.core.array_leaves import merge_objects, split_objects
from outlay.core.shared_objects import Objects
from outlay.layout.layout import Layout
from outlay.program.abstract import over_arrays as over_arrays_of_equinox
from outlay.program.diagnose import are_flags_alone, other_settings
from outlay.program.functional_step import FunctionalStep
from outlay.program.modes import Step
from outlay.program.program import Program


class ProgramOfObjects(Program):
    """A program of a step that is written with NNX objects. What two of them share has one leaf in its plan.

    Args:
        program: the program of the step over arrays.
        over_arrays: that step, which knows the objects.
    """

    def __init__(self, program: Program, over_arrays: FunctionalStep) -> None:
        vars(self).update(vars(program))  # it is that program, and is called in another way
        self._run = self._first_run
        self._over_arrays = over_arrays
        self._others: list[tuple[Objects | None, Program]] = [(over_arrays.objects, self)]

    def __call__(self, state: Any, batch: Any) -> Any:
        """Run one step; as `Program.__call__`, on objects. Given arrays alone, it returns arrays."""
        objects, arrays = split_objects(state)
        if objects is None:
            return super().__call__(state, batch)
        program = self._of(objects, state)
        result = Program.__call__(program, arrays, batch)
        return (program.state_of(result[0]), result[1]) if self.donate else result

    def init(self, key: Any) -> Any:
        """Initialize the state, and return it with its objects."""
        return self.state_of(super().init(key))

    def arrays_of(self, state: Any) -> Any:
        """Return the arrays of a state, each once."""
        return split_objects(state)[1]

    def state_of(self, arrays: Any) -> Any:
        """Return the state that consists of these arrays, with its objects."""
        return merge_objects(self._over_arrays.objects, arrays)

    def taking(self, state: Any) -> Program:
        """Return the program for the flags of a state."""
        objects, _ = split_objects(state)
        return super().taking(state) if objects is None else self._of(objects, state)

    def with_layout(self, layout: Layout) -> Program:
        """Make a program of the same step on the same mesh under another layout."""
        return ProgramOfObjects(super().with_layout(layout), self._over_arrays)

    def with_batch(self, inputs: Any) -> Program:
        """Make a program of the same step for other batch shapes."""
        return ProgramOfObjects(super().with_batch(inputs), self._over_arrays)

    def with_step(self, step: Step, init: Callable[[Any], Any], inputs: Any) -> Program:
        """Make a program of another step under the same layout, on the same mesh and in the same mode."""
        over_arrays = FunctionalStep(step, init, donate=self.donate)
        program = super().with_step(over_arrays.step, over_arrays.init, inputs)
        return ProgramOfObjects(program, over_arrays) if over_arrays.objects else program

    def _of(self, objects: Objects, state: Any) -> Program:
        """Return the program for objects: this one, or one for other flags, as in evaluation."""
        for known, program in self._others:
            if known == objects:
                return program
        planned = self.state_of(self.state_shapes)
        if are_flags_alone(planned, state):
            over_arrays = self._over_arrays.for_objects(objects)
            step, init = over_arrays_of_equinox(over_arrays.step, over_arrays.init)
            program: Program = ProgramOfObjects(self._again(step=step, init=init), over_arrays)
        elif problem := other_settings("state", planned, state):
            raise problem
        else:  # the same, made by another call of the user's functions
            program = self
        self._others.append((objects, program))
        return program
