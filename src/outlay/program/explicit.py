"""Where Explicit axes leave a sharding open: every such line of a step or init at once, each with its edit.

JAX stops at the first operation whose result it would have to choose a sharding for. Here the function is traced again,
and each operation that JAX refuses is replaced by one that it accepts: the same operation with one edit made. So later
operations are reached, backward passes too, and the edits listed are edits that were tried.
"""

from __future__ import annotations

import itertools
import linecache
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_source import Frame, user_frames
from outlay.core.jax_tracing import fresh_traces, in_backward_pass, intercepting
from outlay.core.quantities import counted
from outlay.core.source_owner import OUTLAY, is_installed
from outlay.devices.mesh_info import is_explicit
from outlay.program.abstract import abstract_init, name_of, named

_MACHINERY = tuple(str(OUTLAY / folder) for folder in ("core", "graph", "program", "train"))


def with_types(stage: Callable[..., Any], run: Callable[..., Any], shapes: Any, shardings: Any, mesh: Mesh) -> Any:
    """Trace or lower a jitted function from the types that its arguments have on Explicit axes.

    Args:
        stage: `jax.jit(run).lower`, or its `trace`.
        run: the function itself.
        shapes: its arguments as shapes.
        shardings: where they live, of the same structure.
        mesh: a mesh with Explicit axes.

    Raises:
        ProgramError: JAX would have to choose shardings; every such line is listed.
    """
    args = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    try:
        with jax.set_mesh(mesh):
            return stage(*args)
    except Exception as error:  # ShardingTypeError is private, and JAX raises others besides
        problem = open_shardings(run, args, mesh, named(run))
        if problem is None:
            raise
        raise problem from error


def state_shapes(init: Callable[[Any], Any], mesh: Mesh) -> Any:
    """Trace `init(key)` in the context of a mesh of any axes; return the state as shapes and dtypes.

    Raises:
        ProgramError: a leaf of the state is not an array; or axes are Explicit, JAX would have to choose shardings, and
            then every such line is listed.
    """
    try:
        return abstract_init(init)
    except Exception as error:
        problem = None
        if is_explicit(mesh) and not isinstance(error, ProgramError):
            key = jax.eval_shape(lambda: jax.random.key(0))
            problem = open_shardings(init, (key,), mesh, f"init {name_of(init)}")
        if problem is None:
            raise
        raise problem from error


def open_shardings(function: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh, what: str) -> ProgramError | None:
    """Return the error that lists every line to edit; None if shardings are not the problem.

    Args:
        function: pure function that JAX refused to trace on this mesh.
        args: its arguments as `jax.ShapeDtypeStruct` with shardings.
        mesh: a mesh with Explicit axes.
        what: what the function is, for the message.
    """
    tracing = _Tracing()
    stopped: Exception | None = None
    try:
        with jax.set_mesh(mesh), fresh_traces(), intercepting(tracing.operation):
            # A new function: of the old one JAX has a trace, in which nothing could be edited.
            jax.eval_shape(lambda *args: function(*args), *args)
    except Exception as error:  # whatever stops the trace ends the list, and the message says so
        stopped = error
    finally:
        if tracing.sites:
            jax.clear_caches()  # inner jitted functions were traced with edits that the user has not made
    return _error(tracing.sites, stopped, mesh, what) if tracing.sites else None


@dataclass
class _Site:
    frames: list[Frame]
    backward: bool
    operation: str
    operands: str
    edit: str
    out_sharding: bool

    def problem(self, times: int) -> Problem:
        here, *callers = self.frames
        again = f", {times} times" if times > 1 else ""
        backward = ", in its backward pass" if self.backward else ""
        lines = [linecache.getline(here.file, here.line).strip(), f"operands: {self.operands}"]
        if is_installed(here.file) and callers:
            lines.insert(1, "called from " + "\n    ".join(_located(frame) for frame in callers[:1]))
        kind = f"{self.operation}{backward}{again}"
        return Problem(kind, _located(here), "\n    ".join(lines), self.edit)


class _Tracing:
    """A trace that makes an edit wherever JAX refuses an operation, and takes note of it."""

    def __init__(self) -> None:
        self.sites: list[_Site] = []
        self._stack: list[Any] = []
        self._trying = False
        self._beyond_help: Exception | None = None

    def operation(self, primitive: Any, bind: Bind, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if self._trying:
            return bind(*operands, **params)
        self._stack.append(primitive)
        try:
            result = bind(*operands, **params)
        except Exception as error:
            # Inside a plain operation (its derivative, its batching) the user's own view of it is one level up.
            inside_plain = any(not _calls_others(outer) for outer in self._stack[:-1])
            if inside_plain or error is self._beyond_help or not any(any(dims_of(x)) for x in operands):
                raise
            result = self._edited(primitive.name, bind, operands, params, error)
        finally:
            self._stack.pop()
        if primitive.name in ("jit", "pjit") and self.sites:
            # Functions of jax.numpy are jitted under private names, such as `_where`.
            self._within(params["name"].lstrip("_"), result)
            jax.clear_caches()  # else a second call of this function would be taken, edited, from the cache
        return result

    def _edited(
        self, name: str, bind: Bind, operands: tuple[Any, ...], params: dict[str, Any], error: Exception
    ) -> Any:
        self._trying = True
        try:
            for edit in edits(name, bind, operands, params):
                try:
                    result = edit.run()
                except Exception:  # this edit does not help; JAX may refuse it in any way
                    continue
                types = ", ".join(str(jax.typeof(x)) for x in operands)
                site = _Site(_frames(), in_backward_pass(), name, types, edit.text, edit.out_spec is not None)
                self.sites.append(site)
                return result
        finally:
            self._trying = False
        self._beyond_help = error
        raise error

    def _within(self, function: str, result: Any) -> None:
        """Speak of the function of `jax.numpy` that was called, and of its result, not of the operation inside."""
        if not hasattr(jax.numpy, function):
            return
        frames = _frames()
        for site in self.sites:
            if site.frames == frames and not site.backward:
                site.operation = f"jnp.{function}"
                if site.out_sharding and len(result) == 1:
                    spec = jax.typeof(result[0]).sharding.spec
                    site.edit = f"jnp.{function}(..., {out_sharding_of(spec)})"


def _calls_others(primitive: Any) -> bool:
    """Return whether operations inside are the user's own, as in a scan, and not how JAX carries out one operation."""
    return primitive.name.startswith(("custom_", "jit", "pjit", "checkpoint", "remat", "scan", "while", "cond"))


def _frames() -> list[Frame]:
    return user_frames(ignoring=_MACHINERY) or user_frames()


def _located(frame: Frame) -> str:
    return f"{frame.file}:{frame.line} in {frame.function}"


def _error(sites: list[_Site], stopped: Exception | None, mesh: Mesh, what: str) -> ProgramError:
    keys = [(site.frames[0], site.operation, site.operands, site.edit, site.backward) for site in sites]
    times, first = Counter(keys), dict(zip(reversed(keys), reversed(sites), strict=True))
    problems = [first[key].problem(count) for key, count in times.items()]
    sizes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    head = (
        f"{what} leaves {counted(len(problems), 'sharding')} open, which the Explicit axes of this mesh "
        f"({sizes}) ask for; "
        "each line, and what to write there:"
    )
    if stopped is None:
        tail = "  With these edits, all of them tried together, JAX accepts it."
    else:
        tail = f"  Further lines may follow: with these edits the trace still stops, and JAX says:\n    {stopped}"
    other = f"  Or leave these choices to XLA: outlay.mesh({sizes})"
    return ProgramError("\n".join([head, *(problem.text() for problem in problems), tail, other]))


Bind = Callable[..., Any]
_Dims = tuple[Any, ...]

_MOST_RESHARDS = 64
"""Ways to unshard operands that are tried for one operation, before all of them at once."""


@dataclass(frozen=True)
class Edit:
    """One way to write an operation so that JAX accepts it.

    Attributes:
        run: the operation with the edit made; it raises where the edit does not help.
        text: the edit in words of code.
        out_spec: what goes into `out_sharding=`, where the edit is one.
    """

    run: Callable[[], Any]
    text: str
    out_spec: P | None = None


def edits(operation: str, bind: Bind, operands: tuple[Any, ...], params: dict[str, Any]) -> Iterator[Edit]:
    """Return the edits worth trying, in order.

    Args:
        operation: the name of the primitive.
        bind: runs it.
        operands: its operands, as traced; their types carry shardings.
        params: its parameters.
    """
    if operation == "dot_general":
        yield _dot(bind, operands, params)
    reshards = _reshards(bind, operands, params)
    if operation != "gather":
        yield from reshards
    elif params["dimension_numbers"].operand_batching_dims:  # take_along_axis, which takes no out_sharding
        yield from itertools.chain(reshards, [_lookup(bind, operands, params)])
    else:
        yield from itertools.chain([_lookup(bind, operands, params)], reshards)


def dims_of(operand: Any) -> _Dims:
    """Return the mesh axes of each dim of a value: None, a name, or a tuple of names."""
    type_of = jax.typeof(operand)
    dims = getattr(getattr(type_of, "sharding", None), "spec", None) or ()
    return (*dims, *[None] * (len(getattr(type_of, "shape", ())) - len(dims)))


def out_sharding_of(spec: P) -> str:
    """Write the parameter as source code."""
    return f"out_sharding={_written(spec)}"


def _dot(bind: Bind, operands: tuple[Any, ...], params: dict[str, Any]) -> Edit:
    (left_summed, right_summed), (left_batch, right_batch) = params["dimension_numbers"]
    left, right = (dims_of(operand) for operand in operands)
    batch = [left[i] or right[j] for i, j in zip(left_batch, right_batch, strict=True)]
    left_kept = [axes for i, axes in enumerate(left) if i not in (*left_summed, *left_batch)]
    right_kept = [axes for i, axes in enumerate(right) if i not in (*right_summed, *right_batch)]
    spec = P(*_each_axis_once([*batch, *left_kept, *right_kept]))
    sharding = NamedSharding(jax.sharding.get_abstract_mesh(), spec)
    text = f"jnp.matmul or jnp.einsum(..., {out_sharding_of(spec)})"
    return Edit(lambda: bind(*operands, **{**params, "out_sharding": sharding}), text, spec)


def _lookup(bind: Bind, operands: tuple[Any, ...], params: dict[str, Any]) -> Edit:
    """Return the edit of a lookup: its rows are split as the indices are, and along each row as the table is."""
    numbers = params["dimension_numbers"]
    table, indices = (dims_of(operand) for operand in operands)
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    whole = [size == full for size, full in zip(params["slice_sizes"], operands[0].shape, strict=True)]
    along_rows = iter([axes if whole[i] else None for i, axes in enumerate(table) if i not in gone])
    along_indices = iter(indices[:-1])
    in_row = [i in numbers.offset_dims for i in range(len(indices) - 1 + len(numbers.offset_dims))]
    dims = [next(along_rows) if row else next(along_indices) for row in in_row]
    first = sorted(range(len(dims)), key=lambda i: in_row[i])  # where both want an axis, the indices keep it
    once = dict(zip(first, _each_axis_once([dims[i] for i in first]), strict=True))
    spec = P(*(once[i] for i in range(len(dims))))
    run = jax.sharding.auto_axes(lambda *args: bind(*args, **params), out_sharding=spec)
    return Edit(lambda: run(*operands), f"table.at[indices].get({out_sharding_of(spec)})", spec)


def _reshards(bind: Bind, operands: tuple[Any, ...], params: dict[str, Any]) -> Iterator[Edit]:
    """Yield edits that move operands first: to each other's sharding, or whole along some dims; cheap moves first."""
    old = [dims_of(operand) for operand in operands]
    for new in itertools.chain(_like_another(operands, old), _whole_along(operands, old)):
        moved = {i: P(*dims) for i, dims in enumerate(new) if dims != old[i]}
        edited = [_moved(operand, moved.get(i)) for i, operand in enumerate(operands)]
        many = len(operands) > 1
        text = " and ".join(
            f"jax.reshard({f'operand {i + 1}' if many else 'the operand'}, {_written(_short(spec))})"
            for i, spec in moved.items()
        )
        yield Edit(lambda edited=edited: bind(*edited, **params), text)


def _moved(operand: Any, spec: P | None) -> Any:
    """Move the operand to a spec, or leave it alone."""
    return operand if spec is None else jax.reshard(operand, spec)


def _like_another(operands: tuple[Any, ...], old: list[_Dims]) -> Iterator[list[_Dims]]:
    if len(operands) < 2 or len({operand.shape for operand in operands}) > 1:
        return
    for dims in dict.fromkeys(old):
        if any(dims):
            yield [dims] * len(operands)


def _whole_along(operands: tuple[Any, ...], old: list[_Dims]) -> Iterator[list[_Dims]]:
    sharded = [(i, d) for i, dims in enumerate(old) for d, axes in enumerate(dims) if axes]

    def cost(drops: tuple[tuple[int, int], ...]) -> tuple[int, int, int]:
        # The first dim is most often the batch, which nobody wants whole.
        moved = {i for i, _ in drops}
        return len(drops), sum(d == 0 for _, d in drops), sum(math.prod(operands[i].shape) for i in moved)

    few = sorted((drops for n in (1, 2, 3) for drops in itertools.combinations(sharded, n)), key=cost)
    for drops in [*few[:_MOST_RESHARDS], tuple(sharded)]:
        yield [tuple(None if (i, d) in drops else axes for d, axes in enumerate(dims)) for i, dims in enumerate(old)]


def _each_axis_once(dims: list[Any]) -> list[Any]:
    """Drop what an earlier dim uses already."""
    used: set[str] = set()
    remaining = []
    for axes in dims:
        names = axes if isinstance(axes, tuple) else (axes,) if axes else ()
        free = tuple(name for name in names if name not in used)
        used.update(free)
        remaining.append(free[0] if len(free) == 1 else free or None)
    return remaining


def _short(spec: P) -> P:
    """Drop what a spec need not say: jax.numpy may have given the operand leading dims that the user does not see."""
    dims = list(spec)
    while dims and dims[-1] is None:
        dims.pop()
    return P(*dims)


def _written(spec: P) -> str:
    return f"P({', '.join(repr(axes) for axes in spec)})"
