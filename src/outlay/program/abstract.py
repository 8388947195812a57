"""Trace a step abstractly, once, before anything is planned: what it takes and returns, as shapes."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import PartitionSpec

from outlay.arrays.host_values import hold, take_tree
from outlay.core.array_leaves import arrays_only, as_model, is_array, non_arrays, placed_by_plan, type_differences
from outlay.core.constrain import Gradient, Sums, current_resolver, current_runner, current_specs
from outlay.core.context_values import within
from outlay.core.error_types import ProgramError
from outlay.core.flat_nodes import ByStructure, flat_nodes, has_flat_nodes, users_nodes
from outlay.core.jax_tracing import run_jaxpr, settings
from outlay.core.quantities import counted
from outlay.layout.check_rules import OUTPUTS


def abstract_init(init: Callable[[Any], Any], key: Any = None) -> Any:
    """Return the state that `init(key)` makes, as shapes and dtypes.

    Args:
        init: the function.
        key: a key as a shape; None for one of JAX's default kind.

    Raises:
        ProgramError: a leaf of the state is not an array; all such leaves are listed.
    """

    def checked(key: Any) -> Any:
        state = placed_by_plan(init, key)
        # Host arrays among what it computes are constants to JAX, which would wrap integers in silence.
        if problems := take_tree(state)[1]:
            raise ProgramError(hold("the state that init returns holds", problems), problems)
        return state

    return jax.eval_shape(checked, jax.eval_shape(lambda: jax.random.key(0)) if key is None else key)


_OLD_STYLE = {2: "threefry2x32", 4: "rbg"}
"""Kinds of PRNG keys by how many numbers an old-style key of theirs has."""


def as_key(key: Any) -> Any:
    """Convert a PRNG key to the form that init functions get: `jax.random.PRNGKey`'s become typed keys.

    None stays None, for an init function that draws nothing.

    Raises:
        ProgramError: it is not a single key.

    >>> as_key(jax.random.PRNGKey(7)) == jax.random.key(7)
    Array(True, dtype=bool)
    """
    if key is None or isinstance(key, Tracer):
        return key
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    if shape == () and dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return key
    if dtype == jnp.uint32 and shape in [(num,) for num in _OLD_STYLE]:
        default = str(jax.config.values["jax_default_prng_impl"])
        fits = jax.eval_shape(lambda: jax.random.PRNGKey(0)).shape == shape
        return jax.random.wrap_key_data(jnp.asarray(key), impl=default if fits else _OLD_STYLE[shape[0]])
    seed = key if isinstance(key, int) and not isinstance(key, bool) else 0
    shown = " ".join(repr(key).split())
    got = f"{dtype}{list(shape)}" if shape is not None else f"of type {type(key).__name__}: {shown:.60}"
    raise ProgramError(f"init takes one PRNG key, and this is {got}\n  fix: jax.random.key({seed})")


def abstract_inputs(inputs: Any) -> Any:
    """Return an example batch as shapes and dtypes, with dtypes as JAX will see them."""
    # JAX warns of a generator, and a loader is a leaf to it.
    if hasattr(inputs, "__next__") or (hasattr(inputs, "__iter__") and _is_object(inputs)):
        raise ProgramError(
            f"the example batch is a {type(inputs).__name__}, which yields batches\n"
            "  fix: give one of them, next(iter(batches)), or its shapes and dtypes"
        )
    inputs, problems = take_tree(flat_nodes(inputs))
    if problems:
        raise ProgramError(hold("the batch holds", problems), problems)
    shapes = jax.eval_shape(lambda batch: batch, inputs)
    # eval_shape keeps an example's sharding; on Explicit axes that the user has set, its type would name that mesh.
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), shapes)


def _is_object(value: Any) -> bool:
    """Return whether a value is one leaf for JAX and neither an array nor a text."""
    return jax.tree_util.all_leaves([value]) and not is_array(value) and not isinstance(value, str)


class OnlyReads:
    """Wraps a step that only reads the state and returns its outputs alone.

    Args:
        step: the user's step.
    """

    def __init__(self, step: Callable[[Any, Any], Any]) -> None:
        functools.update_wrapper(self, step)
        self._step = step

    def __call__(self, state: Any, batch: Any) -> tuple[None, Any]:
        """Return no new state, and the outputs."""
        outputs = self._step(state, batch)
        if isinstance(outputs, tuple) and outputs and _is_like(outputs[0], state):
            raise ProgramError(
                f"{named(self._step)} returns a state, and with donate=False it only reads one\n"
                "  fix: return the outputs alone; or leave donate=False out, and the state it returns is the next"
            )
        return None, outputs


def over_arrays(step: Any, init: Callable[[Any], Any]) -> tuple[Any, Callable[[Any], Any]]:
    """Wrap step and init so that state, batch and outputs are as programs hold them; the user's own see their classes.

    Args:
        step: the user's step, given whole modules of Equinox and nodes of the user's own classes.
        init: the user's init, which returns such.
    """
    if not (callable(step) and callable(init)):
        return step, init

    @functools.wraps(step, updated=())
    def run(state: Any, batch: Any) -> Any:
        return arrays_only(step(as_model(state), users_nodes(batch)))

    @functools.wraps(init, updated=())
    def start(key: Any) -> Any:
        return arrays_only(init(key))

    # `functools.wraps` takes no name from an object that can be called.
    run.__name__ = name_of(step)
    return run, start


def between_users_nodes(run: Callable[[Any, Any], Any], compiled: jax.stages.Compiled) -> Callable[[Any, Any], Any]:
    """Return what takes and returns the user's own nodes, where what is compiled has others in their place.

    Args:
        run: takes state and batch, and runs `compiled`. It is returned if there are no such nodes.
        compiled: the compiled step.
    """
    trees = (tree.unflatten([None] * tree.num_leaves) for tree in (compiled.in_tree, compiled.out_tree))
    if not has_flat_nodes(list(trees)):
        return run
    into_state, into_batch, out = ByStructure(arrays_only), ByStructure(flat_nodes), ByStructure(users_nodes)

    def run_on_users(state: Any, batch: Any) -> Any:
        return out(run(into_state(state), into_batch(batch)))

    return run_on_users


def as_shapes(tree: Any) -> Any:
    """Convert a tree of arrays, or of numbers that JAX takes for arrays, to shapes and dtypes."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), flat_nodes(tree))


@dataclass(frozen=True)
class Traced:
    """What a single abstract trace finds in a step.

    Attributes:
        intermediates: the values that it constrains by name, and its outputs, as shapes.
        required_names: the names among them that a layout must speak of.
        specs: the specs that it constrains values to.
        sums_over_batch: whether it says where it sums over its batch.
        num_microbatches: in how many parts at most it takes its batch for such a sum.
        runs_per_shard: whether its mode runs it as a whole on each device's shards.
        jaxpr: the trace; None for a step that only makes sense on shards.
        results: what the step returns, as shapes.
        settings: the settings of JAX under which it was traced.
    """

    intermediates: dict[str, Any] = field(default_factory=dict)
    required_names: list[str] = field(default_factory=list)
    specs: list[PartitionSpec] = field(default_factory=list)
    sums_over_batch: bool = False
    num_microbatches: int = 1
    runs_per_shard: bool = False
    jaxpr: Any = field(default=None, compare=False)
    results: Any = field(default=None, compare=False)
    settings: dict[str, Any] = field(default_factory=settings, compare=False)

    def replaying(self, step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return the traced step as a function that runs its operations, each from its source line, without its Python.

        Args:
            step: the step, for its name.
        """

        @functools.wraps(step, updated=())
        def replayed(state: Any, batch: Any) -> Any:
            results = run_jaxpr(self.jaxpr, jax.tree.leaves((state, batch)), lambda _, values, bind: bind(*values))
            return jax.tree.unflatten(jax.tree.structure(self.results), results)

        replayed.__name__ = name_of(step)  # which `functools.wraps` takes from no object that can be called
        return replayed


def abstract_step(step: Callable[[Any, Any], Any], state: Any, batch: Any, mode: str = "auto") -> Traced:
    """Trace the step once.

    Args:
        step: the user's step.
        state: the state as shapes.
        batch: the batch as shapes.
        mode: how it is executed; in mode manual it may use collectives over the mesh's axes.

    Raises:
        ProgramError: the step does not return `(state, outputs)`, its state is not of the shapes it took, or it uses
            collectives where it may not.
    """
    manual = mode == "manual"
    seen = Traced()
    microbatches: list[int] = []  # of each sum

    def record(where: str | PartitionSpec, tree: Any, optional: bool) -> Any:
        if isinstance(where, PartitionSpec):
            seen.specs.append(where)
            return tree
        seen.intermediates[where] = as_shapes(tree)
        if not optional and where not in seen.required_names:
            seen.required_names.append(where)
        return tree

    def run(gradient: Gradient, of: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
        # The sums themselves hold tracers, and jax.checking_leaks() would find those.
        microbatches.append(gradient.num_microbatches)
        return gradient(of, params, samples)

    def checked(state: Any, batch: Any) -> Any:
        with within(current_resolver, record), within(current_specs, {}), within(current_runner, run):
            result = step(state, batch)
        check_results(step, result, state)
        if jax.tree.leaves(result[1]):
            record(OUTPUTS, result[1], True)
        return result

    try:
        jaxpr, results = jax.make_jaxpr(checked, return_shape=True)(state, batch)
    except NameError as error:
        if "unbound axis name" not in str(error):
            raise
        if manual and not microbatches:  # it only makes sense on shards, and is checked there
            return Traced(runs_per_shard=True)
        raise _needless_collective(step, error, manual=manual) from error
    if not isinstance(step, OnlyReads):
        check_state_type(step, state, results[0])
    return dataclasses.replace(
        seen,
        sums_over_batch=bool(microbatches),
        num_microbatches=max(microbatches, default=1),
        runs_per_shard=manual and not microbatches,
        jaxpr=jaxpr,
        results=results,
    )


def _needless_collective(step: Callable[..., Any], error: NameError, *, manual: bool) -> ProgramError:
    """Return the error for a collective in a step that sees whole arrays, or in a loss whose sums are taken for it."""
    if manual:
        return ProgramError(
            f"the loss of {named(step)} uses a collective over a mesh axis ({error}), but the step sums over the "
            f"batch by itself, so samples would be summed twice\n"
            "  fix: leave the collective out: a loss gives one number per sample; to write all collectives by "
            "hand, write the whole step without outlay.train_step"
        )
    return ProgramError(
        f"{named(step)} uses a collective over a mesh axis ({error}), which only mode manual gives a meaning\n"
        '  fix: outlay.program(..., mode="manual"), or leave the collective out: in mode auto the step sees '
        "whole arrays"
    )


def _is_like(tree: Any, state: Any) -> bool:
    if jax.tree.structure(tree) != jax.tree.structure(state) or not jax.tree.leaves(state):
        return False
    return as_shapes(tree) == as_shapes(state)


def _check_arrays(tree: Any, what: str) -> None:
    if problems := non_arrays(tree):
        head = f"{what} holds {counted(len(problems), 'leaf that is not an array', 'leaves that are not arrays')}:"
        raise ProgramError(head, problems)


def check_results(step: Callable[..., Any], result: Any, state: Any) -> None:
    """Raise if a step returned anything but a pair of state and arrays.

    Args:
        step: the step.
        result: what it returned.
        state: the state that it took.
    """
    # A pair whose first entry is such a state is never itself of the state's structure.
    is_of_state = jax.tree.leaves(state) and jax.tree.structure(result) == jax.tree.structure(state)
    if is_of_state and not isinstance(step, OnlyReads):
        name = name_of(step) if name_of(step).isidentifier() else "update"
        raise ProgramError(
            f"{named(step)} must return (state, outputs), a pair; it returned its state alone"
            f"\n  fix: outlay.program(lambda state, batch: ({name}(state, batch), {{}}), ...), or return outputs, too"
        )
    if not (isinstance(result, tuple) and len(result) == 2):
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
        got = "an array" if isinstance(result, jax.Array) else got
        raise ProgramError(
            f"{named(step)} must return (state, outputs), a pair; it returned {got}"
            "\n  fix: return state, outputs; or outlay.program(..., donate=False) where it only reads the state"
        )
    _check_arrays(result[1], f"the outputs of {named(step)}")


def check_state_type(step: Callable[..., Any], before: Any, after: Any) -> None:
    """Raise if a step changes the type of the state: it could be donated once and never run again."""
    changed = type_differences(before, after)
    if changed:
        lines = [f"  {path}: took {old or 'nothing'}, returned {new or 'nothing'}" for path, old, new in changed]
        head = (
            f"{named(step)} returns a state unlike the one it took: "
            f"{counted(len(changed), 'leaf differs', 'leaves differ')}"
        )
        fix = "  fix: return every leaf of the state with its shape and dtype, e.g. x.astype(old.dtype)"
        raise ProgramError("\n".join([head, *lines, fix]))
    if jax.tree.structure(before) != jax.tree.structure(after):
        from outlay.core.static_facts import structure_lines

        head = f"{named(step)} returns a state of the same leaves in another container:"
        fix = "  fix: build the new state with the type of the old one, e.g. dataclasses.replace(state, ...)"
        raise ProgramError("\n".join([head, *structure_lines(before, after), fix]))


def unknown_axis(step: Callable[..., Any], axes: Collection[str], error: NameError) -> ProgramError | None:
    """Return the error for a collective over an axis that the mesh lacks, if that is JAX's complaint."""
    from outlay.core.suggest import did_you_mean

    unbound = re.search(r"unbound axis name: (\w+)", str(error))
    if unbound is None:
        return None
    return ProgramError(
        f"{named(step)} uses a collective over {unbound[1]!r}, which is not an axis of this mesh: "
        f"{did_you_mean(unbound[1], axes)}"
    )


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or the class of another object that can be called."""
    return getattr(function, "__name__", type(function).__name__)


def named(step: Callable[..., Any]) -> str:
    """Name a step for messages."""
    return f"the step {name_of(step)}"
