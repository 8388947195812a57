"""Check that all processes are about to run the same program; otherwise they hang or compute wrong numbers."""

from __future__ import annotations

import base64
import collections
import dataclasses
import difflib
import functools
import hashlib
import inspect
import itertools
import json
import operator
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.core.array_leaves import dtype_and_shape
from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted, plural
from outlay.core.runtime_flags import versions
from outlay.core.source_owner import part_of_outlay
from outlay.devices.mesh_info import processes_of
from outlay.jobs.current_job import gather_all, part, patience, post, texts_in_time, wait_for

_num_compared: collections.Counter[tuple[int, ...]] = collections.Counter()


def check_agreement(facts: Facts, processes: Sequence[int]) -> None:
    """Compare what this process is about to run with what the others are about to run; all of them call this.

    Hashes are compared first. Only if they differ does one process of each group send the whole.

    Args:
        facts: what this process is about to run.
        processes: the numbers of all that take part, with this one.

    Raises:
        ProgramError: they differ, or some have not arrived; raised in every process that has.
    """
    key, process = _key(tuple(processes)), jax.process_index()
    post(f"{key}/{process}", json.dumps(facts.hashes))
    hashes = _all_hashes(key, facts.where, processes)
    groups = collections.defaultdict(list)
    for other in processes:
        groups[hashes[other]].append(other)
    if len(groups) == 1:
        return
    if process in [group[0] for group in groups.values()]:
        post(f"{key}/facts/{process}", facts.to_json())
    facts_by_group = {tuple(group): _facts_of(key, group[0]) for group in groups.values()}
    part(f"{key}/read", processes)
    raise ProgramError(disagreement(facts_by_group, {tuple(group): json.loads(text) for text, group in groups.items()}))


def wait_for_all(first_run_of: str, step: Callable[..., Any], mesh: Mesh) -> None:
    """Wait until all processes of a mesh are here; nothing to wait for if there is a single one.

    Args:
        first_run_of: what they are about to run.
        step: the step that it belongs to.
        mesh: the mesh.

    Raises:
        ProgramError: some have not arrived.
    """
    if not (processes := processes_of(mesh)):
        return
    # Data or a compiled program may come minutes later in one process than in another, and the first collective of CPU
    # devices waits for 30 s only.
    seconds = patience()
    missing = gather_all(f"{_key(tuple(processes))}/{first_run_of}", processes, jax.process_index(), seconds)
    if missing:
        raise ProgramError(_missing_processes(missing, processes, seconds, source_of(step)))


def _key(processes: tuple[int, ...]) -> str:
    """Return this comparison's key: the same in all processes, which compare the same things in the same order."""
    number = _num_compared[processes]
    _num_compared[processes] += 1
    return f"agree/{hashlib.sha256(repr(processes).encode()).hexdigest()[:12]}/{number}"


def _all_hashes(key: str, where: str, processes: Sequence[int]) -> dict[int, str]:
    seconds = patience()
    texts = texts_in_time(key, processes, seconds)
    if missing := [other for other in processes if other not in texts]:
        raise ProgramError(_missing_processes(missing, processes, seconds, where))
    return texts


def _missing_processes(missing: Sequence[int], processes: Sequence[int], seconds: float, where: str) -> str:
    return (
        f"process {jax.process_index()} has waited {seconds:g} s to run its program ({where}), and {len(missing)} of "
        f"{len(processes)} processes have not arrived\n  missing: {named(missing)}\n  fix: make and run the same "
        "programs in the same order in every process of a mesh; if one just needs longer: outlay.join(timeout=...)"
    )


def _facts_of(key: str, process: int) -> Facts:
    text = wait_for(f"{key}/facts/{process}", patience())
    return Facts.from_json(text) if text else Facts({}, {}, "", "it ended before it said where")


_NUM_LINES = 3
_WIDTH = 120
_NUMBERED = re.compile(r"%\w+")  # a value's number: one more operation changes those of all that follow
_WINDOW = 200  # lines compared from the first difference on; the time grows with its square
_FIXES = {
    "config": "start all processes with the same options, files and versions",
    "data": "state and batch are global, so their shapes are the same in every process",
    "program": "what is traced must not depend on the process, its host or the time: look for jax.process_index()",
}

Hashes = Mapping[str, str]
Group = tuple[int, ...]


def disagreement(facts: Mapping[Group, Facts], hashes: Mapping[Group, Hashes]) -> str:
    """Write the message: each group of processes compared with the largest group, or the first of the largest.

    Args:
        facts: what each group of processes is about to run.
        hashes: the hashes of each group.
    """
    usual, *others = sorted(facts, key=lambda group: (-len(group), group))
    lines: list[str] = []
    kinds: dict[str, None] = {}
    for other in others:
        lines.append(f"{named(other)} against {named(usual)}:")
        differing = [kind for kind in _FIXES if hashes[usual][kind] != hashes[other][kind]]
        values = [kind for kind in differing if kind != "program"]
        lines += [_of_mapping(kind, getattr(facts[other], kind), getattr(facts[usual], kind)) for kind in values]
        if "program" in differing:
            one, two = (f"{hashes[group]['program']} ({facts[group].where})" for group in (other, usual))
            lines.append(f"  program: {one}, there {two}")
        settings = [] if values else _of_settings(facts[other].settings, facts[usual].settings)
        lines += settings
        if not values and not settings:  # else another program is only the consequence
            lines += _first_lines(facts[other].program, facts[usual].program)
        kinds |= dict.fromkeys(values or (["config"] if settings else differing))
    headline = "the processes are about to run different programs: they would hang or compute wrong numbers"
    return "\n  ".join([headline, *lines, *(f"fix: {_FIXES[kind]}" for kind in kinds)])


def named(processes: Sequence[int]) -> str:
    """Name processes in a message.

    >>> named([3]), named([0, 1, 2])
    ('process 3', 'processes 0, 1, 2')
    """
    more = f", ... ({len(processes)} in all)" if len(processes) > 8 else ""
    return f"{plural(len(processes), 'process', 'processes')} {', '.join(map(str, processes[:8]))}{more}"


def _of_settings(other: Mapping[str, str], usual: Mapping[str, str]) -> list[str]:
    """Return the settings of JAX that differ, except per-process ones."""
    names = [name for name in {**usual, **other} if not _OWN_OF_A_PROCESS.search(name)]
    return [
        f"  setting of JAX: {name} is {other.get(name, 'absent')}, there {usual.get(name, 'absent')}"
        for name in names
        if usual.get(name) != other.get(name)
    ]


def _of_mapping(kind: str, other: Mapping[str, str], usual: Mapping[str, str]) -> str:
    first, *more = [name for name in {**usual, **other} if usual.get(name) != other.get(name)] or ["their order"]
    others = f"; and {counted(len(more), 'more difference')}" if more else ""
    return f"  {kind}: {first} is {other.get(first, 'absent')}, there {usual.get(first, 'absent')}{others}"


def _first_lines(other: str, usual: str) -> list[str]:
    """Return the first lines in which two programs differ; none if one was too long to be sent."""
    if not other or not usual:
        return []
    lines, there = other.splitlines(), usual.splitlines()
    plain, plain_there = ([_NUMBERED.sub("%", line) for line in text] for text in (lines, there))
    same = sum(1 for _ in itertools.takewhile(operator.not_, map(operator.ne, plain, plain_there)))
    window = slice(same, same + _WINDOW)
    # With autojunk, lines that are frequent in a program would not be compared.
    matcher = difflib.SequenceMatcher(None, plain_there[window], plain[window], autojunk=False)
    lines_shown = [
        f"    {sign} {line.strip()[:_WIDTH]}"
        for what, start, end, own_start, own_end in matcher.get_opcodes()
        if what != "equal"
        for sign, part in (("-", there[same + start : same + end]), ("+", lines[same + own_start : same + own_end]))
        for line in part
    ]
    return lines_shown[:_NUM_LINES]


_LONGEST = 1 << 20  # characters of a packed program that is still sent for the comparison by lines
# A callback is pinned to one device of the process that lowers it, so its mesh differs though nothing is wrong.
_PINNED = re.compile(r"^.*sdy\.mesh @maximal_mesh_\d+ = .*\n|(?<=@maximal_mesh_)\d+", re.MULTILINE)
# Output paths and the numbers of devices and threads may differ: no computed value depends on them.
_OWN_OF_A_PROCESS = re.compile(
    r"dump|_dir$|_path$|cache|host_platform_device_count|multi_thread|_threads$|log_|visible_devices|traceback"
)
_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_exec_time_optimization_effort",
)
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "TF32_OVERRIDE", "ROCBLAS_USE_HIPBLASLT")


@dataclass(frozen=True)
class Facts:
    """What a process is about to run.

    Attributes:
        config: the settings by name.
        data: dtype and shape of the leaves of state and batch, by path.
        program: the lowered program.
        where: file and line of its function.
        settings: all settings of JAX by name. That they differ is no fault; where programs do, they may be why.
    """

    config: Mapping[str, str]
    data: Mapping[str, str]
    program: str
    where: str
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def hashes(self) -> dict[str, str]:
        """Hash config, data and program."""
        texts = {"config": json.dumps(self.config), "data": json.dumps(self.data), "program": self.program}
        return {kind: hashlib.sha256(text.encode()).hexdigest()[:12] for kind, text in texts.items()}

    def to_json(self) -> str:
        """Serialize for another process, without a program that is too long to be sent."""
        # As text, since JSON holds no bytes.
        packed = base64.b85encode(zlib.compress(self.program.encode())).decode()
        return json.dumps(asdict(self) | {"program": packed if len(packed) < _LONGEST else ""})

    @classmethod
    def from_json(cls, text: str) -> Facts:
        """Read what another process has sent."""
        fields = json.loads(text)
        packed = fields["program"]
        return cls(**fields | {"program": zlib.decompress(base64.b85decode(packed)).decode() if packed else ""})


def facts_of(
    step: Callable[..., Any], shapes: Any, lowered: Sequence[jax.stages.Lowered], config: Mapping[str, Any]
) -> Facts:
    """Describe what a process is about to run.

    Args:
        step: the step.
        shapes: a tree of the shapes and dtypes that it takes.
        lowered: the step, lowered.
        config: what was chosen, by name; a PRNG key among them counts by what it holds.
    """
    own = {
        **{f"version of {package}": version for package, version in versions(("outlay", "jax", "jaxlib")).items()},
        **_of_the_compiler(os.environ),
    }
    leaves = flatten_paths(shapes)[0]
    return Facts(
        {name: _shown(value) for name, value in (dict(config) | own).items()},
        {path: dtype_and_shape(leaf) for path, leaf in leaves},
        same_everywhere("".join(part.as_text() for part in lowered)),
        source_of(step),
        {name: str(getattr(jax.config, name, value)) for name, value in jax.config.values.items()},
    )


def _of_the_compiler(environment: Mapping[str, str]) -> dict[str, str]:
    """Collect what changes numbers without a trace in the program: options of XLA and JAX, flags one by one."""
    flags = {
        f"{variable} {name}": value or "set"
        for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
        for name, _, value in (flag.partition("=") for flag in sorted(environment.get(variable, "").split()))
        if not _OWN_OF_A_PROCESS.search(name)
    }
    options = {name: str(jax.config.values.get(name)) for name in _OPTIONS}
    variables = {name: environment[name] for name in _VARIABLES if name in environment}
    return flags | options | variables


def same_everywhere(lowered: str) -> str:
    """Remove from a lowered program's text what differs between processes in one and the same program."""
    return _PINNED.sub("", lowered)


def source_of(step: Callable[..., Any]) -> str:
    """Return file and line of a step, or of the user's function in it if the step is Outlay's own."""
    while isinstance(step, functools.partial):
        step = step.func
    reached, functions = [inspect.unwrap(step)], []
    while reached:
        value = reached.pop(0)
        if hasattr(value, "__code__") and value not in functions:
            functions.append(value)
            reached += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        elif dataclasses.is_dataclass(value) and type(value).__module__.startswith("outlay."):
            reached += list(vars(value).values())  # what a step of Outlay's own keeps the user's functions in
    users = [one.__code__ for one in functions if part_of_outlay(one.__code__.co_filename) is None]
    return f"{users[0].co_filename}:{users[0].co_firstlineno}" if users else type(step).__name__


def _shown(value: Any) -> str:
    if not isinstance(value, jax.Array):
        return str(value)
    if not value.is_fully_addressable:  # it is global, so the same in all
        return ""
    return str(jax.random.key_data(value) if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else value)
