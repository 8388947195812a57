"""Where Explicit axes leave a sharding open: every such line of a step or init at once, each with its edit.

JAX stops at the first operation whose result it would have to choose a sharding for. Here the function is traced again,
and each operation that JAX refuses is replaced by one that it accepts: the same operation with one edit made. So later
operations are reached, backward passes too, and the edits listed are edits that were tried.
"""

from __future__ import annotations

import linecache
import sysconfig
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_source import Frame, user_frames
from outlay.core.jax_tracing import fresh_traces, in_backward_pass, intercepting
from outlay.core.quantities import counted
from outlay.program.abstract import abstract_init
from outlay.program.explicit_edits import Bind, dims_of, edits, out_sharding_of

_OUTLAY = Path(__file__).parents[1]
_MACHINERY = tuple(str(_OUTLAY / folder) for folder in ("core", "graph", "program", "train"))
_INSTALLED = sysconfig.get_paths()["purelib"]


def is_explicit(mesh: Mesh) -> bool:
    """Whether shardings are part of the arrays' types on this mesh."""
    return AxisType.Explicit in mesh.axis_types


def lowered_with_types(jitted: Any, run: Callable[..., Any], shapes: Any, shardings: Any, mesh: Mesh) -> Any:
    """A jitted function lowered from the types that its arguments have on Explicit axes.

    Args:
        jitted: `run` under `jax.jit`.
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
            return jitted.lower(*args)
    except Exception as error:  # ShardingTypeError is private, and JAX raises others besides
        problem = open_shardings(run, args, mesh, f"the step {getattr(run, '__name__', type(run).__name__)}")
        if problem is None:
            raise
        raise problem from error


def state_shapes(init: Callable[[Any], Any], mesh: Mesh) -> Any:
    """The state that `init(key)` makes, as shapes and dtypes, in the context of a mesh of any axes.

    Raises:
        ProgramError: a leaf of the state is no array; or axes are Explicit and JAX would have to choose shardings, and
            then every such line is listed.
    """
    try:
        return abstract_init(init)
    except Exception as error:
        problem = None
        if is_explicit(mesh) and not isinstance(error, ProgramError):
            key = jax.eval_shape(lambda: jax.random.key(0))
            problem = open_shardings(init, (key,), mesh, f"init {getattr(init, '__name__', type(init).__name__)}")
        if problem is None:
            raise
        raise problem from error


def open_shardings(function: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh, what: str) -> ProgramError | None:
    """The error that lists every line to edit, or None where shardings are not the problem.

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
        if here.file.startswith(_INSTALLED) and callers:
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
    """Whether operations inside are the user's own, as in a scan, and not how JAX carries out one operation."""
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
        "each place, and what to write there:"
    )
    if stopped is None:
        tail = "  With these edits, all of them tried together, JAX accepts it."
    else:
        tail = f"  Further places may follow: with these edits the trace still stops, and JAX says:\n    {stopped}"
    other = f"  Or leave these choices to XLA: outlay.mesh({sizes})"
    return ProgramError("\n".join([head, *(problem.text() for problem in problems), tail, other]))
