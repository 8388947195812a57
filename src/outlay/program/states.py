"""The states of a program as users hold them: made elsewhere, with flags for evaluation, with rows that are padded."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import jax
from jax.core import Tracer
from jax.sharding import Mesh

from outlay.core.array_leaves import arrays_only
from outlay.core.flat_nodes import users_nodes
from outlay.core.paths import flatten_paths
from outlay.layout.layout import Layout
from outlay.layout.plan import Plan
from outlay.program.program_arguments import begun

if TYPE_CHECKING:
    from outlay.graph.rows import Rows


class States:
    """What a program knows of its states; `Program` has the rest.

    Attributes:
        plan: where every leaf lives.
        layout: the rules of the plan.
        mesh: the mesh of the plan.
        state_shapes: the state as shapes and dtypes.
        rows: for a graph, the parts that are split by rows.
    """

    plan: Plan
    layout: Layout
    mesh: Mesh
    state_shapes: Any
    rows: tuple[Rows, ...]
    _makes: Callable[[Any], Any]
    _again: Callable[..., Any]
    _of_flags: list[Any]

    def put(self, state: Any) -> Any:
        """Place a state that exists already where the plan says: loaded, pretrained, or made by another library.

        An array that already lives there is not copied: the first step then takes its memory. The state is compared by
        paths, so that dictionaries do for other containers of the same names.

        Args:
            state: the complete state, NumPy or JAX arrays on any devices; of a job, the same in every process.

        Returns:
            The state in the containers that `init` makes, for calls of this program.

        Raises:
            LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
            PlaceError: leaves are not arrays, or were donated.
            ProgramError: the mesh has compile-only devices, or the state has other settings than the program.

        Example:
            >>> step = lambda state, batch: ({"w": state["w"] + batch.sum()}, {})
            >>> init = lambda key: {"w": jnp.zeros(16)}
            >>> layout = outlay.fsdp(min_size=8) + outlay.data_parallel()
            >>> program = outlay.program(step, init, np.ones(8), layout=layout, mesh="data=8")
            >>> state = program.put({"w": np.arange(16, dtype=np.float32)})
            >>> state["w"].sharding.spec, float(program(state, np.ones(8))[0]["w"][1])
            (P('data',), 9.0)
        """
        from outlay.arrays.put import put

        state = begun(arrays_only(state), self.layout)
        program = self.taking(state)
        placed = dict(flatten_paths(put(self.arrays_of(state), self.plan, self.mesh))[0])
        named, structure = flatten_paths(program.state_shapes)
        arrays = jax.tree.unflatten(structure, [placed[path] for path, _ in named])
        return program.state_of(users_nodes(arrays))

    def arrays_of(self, state: Any) -> Any:
        """Return the arrays of a state, as the compiled step takes them: of NNX objects each once, in an `nnx.State`.

        For a state without such objects it is the state itself.
        """
        return state

    def state_of(self, arrays: Any) -> Any:
        """Return the state that consists of these arrays: the inverse of `arrays_of`."""
        return arrays

    def taking(self, state: Any) -> Self:
        """Return the program for the flags of a state: this one, or one that was made for a model in evaluation.

        Flags are True, False or None, and are compiled into a step: `use_running_average` of BatchNorm, `inference` of
        dropout, `train` of the model whose `apply` is in a state. A program is made for each combination that comes,
        as a function under `jax.jit` is traced again.
        """
        if jax.tree.structure(state) == self._state_structure:
            return self
        state = arrays_only(state)
        if (structure := jax.tree.structure(state)) == self._state_structure:
            return self
        from outlay.arrays.check_arrays import leaf_differences
        from outlay.core.static_facts import static_differences
        from outlay.program.diagnose import are_flags_alone

        if leaf_differences(state, self.plan.state):
            return self
        for program in (self, *self._of_flags):
            if not static_differences(program.state_shapes, state):
                return program
        if not are_flags_alone(self.state_shapes, state):
            return self

        @functools.wraps(self._makes, updated=())
        def init(key: Any) -> Any:
            return jax.tree.unflatten(structure, jax.tree.leaves(self._makes(key)))

        self._of_flags.append(self._again(init=init))
        return self._of_flags[-1]

    def pad(self, state: Any) -> Any:
        """Pad the rows of a state as planned, where their number is not divisible by the number of devices."""
        return functools.reduce(lambda state, rows: _without_user_mesh(rows.pad, state), self.rows, state)

    def crop(self, state: Any) -> Any:
        """Remove the padded rows from a state; the arrays then have the shapes of a single-device run."""
        return functools.reduce(lambda state, rows: _without_user_mesh(rows.crop, state), self.rows, state)

    def _with_other_flags(self, state: Any) -> tuple[Any, Any] | None:
        """Return the program for the flags of a state that the compiled step refused, and the state, or None."""
        from outlay.arrays.check_arrays import leaf_differences
        from outlay.core.static_facts import static_differences

        whole = arrays_only(state)  # Equinox sets flags in a module by what would be leaves
        program = self.taking(whole)
        structure, given = program._state_structure, jax.tree.structure(whole)
        is_planned = given != structure and not leaf_differences(whole, self.plan.state)
        # Functions that another call of the user's has made, such as `model.apply`, are the same functions.
        if is_planned and not static_differences(program.state_shapes, whole):
            whole, given = jax.tree.unflatten(structure, jax.tree.leaves(whole)), structure
        return None if program is self and given == jax.tree.structure(state) else (program, whole)

    @functools.cached_property
    def _state_structure(self) -> Any:
        return jax.tree.structure(self.state_shapes)


def _without_user_mesh(function: Callable[[Any], Any], state: Any) -> Any:
    """Call a function of a state without the user's own mesh, which may have other devices or Explicit axes."""
    is_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(state))
    with contextlib.nullcontext() if is_traced else jax.set_mesh(None):
        return function(state)
