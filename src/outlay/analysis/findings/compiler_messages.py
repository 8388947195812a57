"""Explain what the compiler reports: reshardings that it could not do, memory that it could not find."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.attribution.provenance import read_op_name, user_line
from outlay.analysis.findings.communication import ONE_SAMPLE
from outlay.analysis.findings.finding import Finding
from outlay.analysis.hlo.attributes import TABLES, SourceTables, read_metadata
from outlay.analysis.hlo.groups import read_iota
from outlay.analysis.hlo.hlo_module import HloModule, SourceLine, read_shapes, total_bytes
from outlay.core.quantities import format_bytes
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.placement import Dims, dims_spec, spec_text

FULL_REMATERIALIZATION = "full-rematerialization"
"""The kind of finding for a resharding that the compiler could not do directly."""

_FULL = "Involuntary full rematerialization"
_NO_LESS = "Can't reduce memory use below"
_RESHARDING = re.compile(
    r"from sharding (?P<have>\{.+?\}) to (?P<want>\{.+?\}) (?:efficiently|without)"
    r".*?HLO operation:? %?(?P<name>\S+) = (?P<shape>[^=]*?) (?P<opcode>[\w\-]+)\("
)
# Arguments alone exceed what the compiler may use: a peak that the memory facts report too.
_ARGUMENTS = re.compile(r"byte size of input/output arguments \(\d+\) exceeds the base limit")
_BELOW = re.compile(rf"{_NO_LESS} (?P<least>[\d.]+ ?\w+).*?only reduced to (?P<reached>[\d.]+ ?\w+)")


def is_message(line: str) -> bool:
    """Return whether a line is reported as a finding."""
    return (_FULL in line and bool(_RESHARDING.search(line))) or bool(_BELOW.search(line) or _ARGUMENTS.search(line))


def message_findings(
    messages: Sequence[str],
    module: HloModule | None = None,
    leaves: Sequence[Leaf] = (),
    text: str = "",
    mesh: MeshInfo | None = None,
) -> Iterator[Finding]:
    """Return a finding for each thing that the compiler reports; repeated reports become one finding.

    Args:
        messages: the lines.
        module: the program, if known.
        leaves: its parameters.
        text: the text of the program; its tables hold the source lines.
        mesh: the mesh of the shardings.
    """
    limits = []
    for line in dict.fromkeys(_without_time(message) for message in messages):
        if resharding := _RESHARDING.search(line):
            yield _full_resharding(line, resharding, module, leaves, text, mesh)
        elif below := _BELOW.search(line):
            limits.append(_no_less_memory(below))
    if limits:  # one per attempt; the largest belongs to the whole program
        yield max(limits, key=lambda finding: finding.cost_bytes)


def _without_time(line: str) -> str:
    # The compiler repeats itself with another time; without it equal messages are one.
    return re.sub(r"^[WEIF]\d{4} [\d:.]+ +\d+ ", "", line)


def _full_resharding(
    line: str,
    match: re.Match[str],
    module: HloModule | None,
    leaves: Sequence[Leaf],
    text: str,
    mesh: MeshInfo | None,
) -> Finding:
    op_name, frames = read_metadata(line, line.find("metadata={"), frames_of(text))
    named, source = read_op_name(op_name), user_line(frames)
    what = f"the result of {named.primitive}" if named else _argument(op_name, module, leaves) or match["name"]
    have, want = (_spec(match[side], mesh) for side in ("have", "want"))
    consumer = _consumer(module, op_name, source) if module else None
    cost = total_bytes(read_shapes(match["shape"])) * _num_tiles(match["have"], mesh)
    if "maximal" in match["want"]:
        needed = "which is needed on device 0 alone, as for jax.debug.print and callbacks"
        fix = "print a reduced value instead, such as x.mean(), or leave it out of the timed program"
    else:
        needed = f"which {consumer} takes as {want}" if consumer else f"which is needed as {want}"
        fix = (
            f"use one sharding on both sides: constrain the value to {want} where it is made, outlay.constrain(x, "
            f"{want}), or to {have} where it is used; or move it in two steps, one mesh axis at a time"
        )
        if "vmap(" in op_name:
            fix += f"; {ONE_SAMPLE}"
    words = (
        f"{what} as {have}, {needed}, cannot be moved directly: every device gathers all of it, {format_bytes(cost)}, "
        "and slices its piece out again"
    )
    dims = None if "maximal" in match["want"] else read_sharding(match["want"], mesh.axes if mesh else ())
    spec = dims_spec(dims) if dims is not None and source is not None else None
    return Finding(FULL_REMATERIALIZATION, words, fix, cost, source or consumer, spec=spec)


def _argument(name: str, module: HloModule | None, leaves: Sequence[Leaf]) -> str:
    """Return the leaf of an argument, by the compiler's name for it."""
    entry = module.computations.get(module.entry) if module else None
    parameters = ((leaf.path, entry.parameter(leaf.number)) for leaf in leaves if entry)
    return next((path for path, parameter in parameters if parameter and parameter.op_name == name), name)


def _spec(text: str, mesh: MeshInfo | None) -> str:
    dims = read_sharding(text, mesh.axes if mesh else ())
    return text if dims is None else spec_text(dims_spec(dims))


def _num_tiles(text: str, mesh: MeshInfo | None) -> int:
    dims = read_sharding(text, mesh.axes if mesh else ())
    sizes = mesh.axis_sizes if mesh else {}
    return math.prod(sizes.get(axis, 1) for axes in dims or () for axis in axes)


def _consumer(module: HloModule, op_name: str, source: SourceLine | None) -> SourceLine | None:
    """Return the line that takes the value elsewhere, if the optimized program still shows it."""
    for computation, one in module.instructions():
        lines: list[SourceLine | None] = []
        line = user_line(one.frames)
        if one.op_name == op_name and line == source:
            lines = [user_line(user.frames) for user in computation.users.get(one.name, ())]
        elif one.opcode.startswith("all-gather"):  # it may carry the name of its consumer
            made = [computation.instructions.get(name) for name in one.operands]
            from_there = any(operand and user_line(operand.frames) == source for operand in made)
            lines = [line] if from_there or one.op_name == op_name else []
        if consumer := next((taken for taken in lines if taken is not None and taken != source), None):
            return consumer
    return None


def frames_of(text: str) -> Callable[[int], tuple[SourceLine, ...]]:
    """Return the source lines of a program's stack frames, by number."""
    tables, table = SourceTables(), ""
    for line in text.splitlines():
        if line in TABLES:
            table = line
        elif line.endswith("{") and table:
            break
        elif table:
            tables.add(table, line)
    return tables.frames


def _no_less_memory(match: re.Match[str]) -> Finding:
    text = (
        f"the compiler recomputes values to save memory, and still needs {match['reached']} for temporaries instead of "
        f"{match['least']}"
    )
    fix = "smaller microbatches (accumulate=...), remat by hand (jax.checkpoint), or split more: fsdp, tensor_parallel"
    return Finding("memory-limit", text, fix, size_bytes(match["reached"]))


def size_bytes(text: str) -> int:
    """Parse a size in bytes as the compilers write it.

    >>> size_bytes("60.20GiB") == int(60.20 * 2**30), size_bytes("512B"), size_bytes("1.5G")
    (True, 512, 1610612736)
    """
    match = re.fullmatch(r"([\d.]+)\s*([KMGT]?)i?B?", text.strip())
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " ")) if match else 0


MeshAxes = Sequence[tuple[str, int]]

_TILES = re.compile(r"devices=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)")
_NAMED = re.compile(r"mesh\[.*?\],\s*\[(.*)\]")
_DIM = re.compile(r"\{([^{}]*)\}")
_AXIS = re.compile(r"'([^']+)'")


def read_sharding(text: str, mesh_axes: MeshAxes) -> Dims | None:
    """Return the mesh axes that split each dim; None if they are not axes of this mesh, or the text is not understood.

    Args:
        text: such as `{devices=[4,1,2]<=[8] last_tile_dim_replicate}` or `{mesh['x'=4,'y'=2], [{'x'}, {}]}`.
        mesh_axes: name and size of each axis, outermost first.

    >>> mesh = (("x", 4), ("y", 2))
    >>> read_sharding("{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}", mesh)
    (('y',), (), ('x',))
    >>> read_sharding("{devices=[1,8]<=[4,2]T(1,0)}", mesh), read_sharding("{replicated}", mesh)
    (((), ('y', 'x')), ())
    """
    if "replicated}" in text and "devices=" not in text:
        return ()
    named = _NAMED.search(text)
    if named:
        return tuple(tuple(_AXIS.findall(dim)) for dim in _DIM.findall(named[1]))
    tiles = _TILES.search(text)
    return _from_tiles(tiles[1], "last_tile_dim_replicate" in text, mesh_axes) if tiles else None


def _from_tiles(text: str, whole_last: bool, mesh_axes: MeshAxes) -> Dims | None:
    num_devices = math.prod(size for _, size in mesh_axes)
    try:
        tiles = read_iota(text, num_devices)
    except ValueError:  # more devices than the mesh has
        return None
    dims = tiles.shape[:-1] if whole_last else tiles.shape
    if tiles.size != num_devices:
        return None
    tiled = np.sort(tiles.reshape(*dims, -1))
    return next((split for split in _candidates(dims, mesh_axes) if _is_same(split, dims, mesh_axes, tiled)), None)


def _candidates(dims: Sequence[int], mesh_axes: MeshAxes) -> Iterator[Dims]:
    """Yield every way to split dims into these numbers of tiles by whole axes."""
    axes = [(name, size) for name, size in mesh_axes if size > 1]

    def split(sizes: Sequence[int], left: list[tuple[str, int]]) -> Iterator[Dims]:
        if not sizes:
            yield ()
            return
        for length in range(len(left) + 1):
            for chosen in itertools.permutations(left, length):
                if math.prod(size for _, size in chosen) == sizes[0]:
                    rest = [axis for axis in left if axis not in chosen]
                    yield from ((tuple(name for name, _ in chosen), *more) for more in split(sizes[1:], rest))

    yield from split(list(dims), axes)


def _is_same(split: Dims, dims: Sequence[int], mesh_axes: MeshAxes, tiled: np.ndarray) -> bool:
    names = [name for name, _ in mesh_axes]
    used = [names.index(name) for axes in split for name in axes]
    left = [dim for dim in range(len(names)) if dim not in used]
    # Equal sets of devices in each tile are the same split, in whatever order the text counts them.
    devices = np.arange(math.prod(size for _, size in mesh_axes)).reshape([size for _, size in mesh_axes])
    return bool((np.sort(devices.transpose(*used, *left).reshape(*dims, -1)) == tiled).all())


_STDERR = 2
# There is one standard error for all threads.
_one_at_a_time = threading.Lock()


@dataclass
class Printed:
    """What was printed.

    Attributes:
        messages: the lines that were recognised; ready when the compiler is done.
    """

    messages: tuple[str, ...] = ()


@contextlib.contextmanager
def watching(recognised: Callable[[str], bool]) -> Iterator[Printed]:
    """Catch what is written to the standard error, also by C++ code, and write what is not recognised after.

    Meanwhile it lies in a file of the temporary folder, `outlay-compiler-*.log`; it stays if the process dies.

    Args:
        recognised: whether a line is a message that will be reported otherwise.
    """
    printed = Printed()
    with _one_at_a_time, contextlib.ExitStack() as stack:
        # JAX's own warning of donation in vain comes from Python; what became of it stands in the compiled program.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        try:
            original = os.dup(_STDERR)
        except OSError:  # a process without a standard error
            yield printed
            return
        file, path = tempfile.mkstemp(prefix="outlay-compiler-", suffix=".log")
        _flush()
        os.dup2(file, _STDERR)
        try:
            yield printed
        finally:
            _flush()
            os.dup2(original, _STDERR)
            os.close(original)
            lines = _read(file)
            os.close(file)
            os.unlink(path)
            printed.messages = tuple(line.rstrip("\n") for line in lines if recognised(line))
            _write("".join(line for line in lines if not recognised(line)))


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()


def _read(file: int) -> list[str]:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), encoding="utf-8", errors="surrogateescape", newline="") as text:
        return text.read().splitlines(keepends=True)


def _write(text: str) -> None:
    left = text.encode("utf-8", errors="surrogateescape")
    while left:
        left = left[os.write(_STDERR, left) :]
