"""Facts about a compiled program, as plain data. All bytes and seconds are one device's, for one step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from outlay.analysis.hlo.hlo_collectives import CollectiveKind
from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.core.one_line import OneLine

Verdict = Literal["fits", "may not fit", "does not fit"]
_LARGEST_POOL = 0.95
Phase = Literal["forward", "backward", "optimizer", "other"]


@dataclass(frozen=True)
class CollectiveFacts(OneLine):
    """One collective: what it moves, over which devices, and which line caused it.

    Attributes:
        kind: such as `all-gather`.
        name: the instruction's name in the compiled program.
        axes: the mesh axes it runs over; empty if its groups follow none.
        group_size: devices that exchange with one another.
        crosses_hosts: whether a group spans several hosts (TPU: slices); None if the hosts are not known.
        dtype: the dtype of what is moved, such as `f32`.
        operand_bytes: what a device contributes, once.
        bytes_moved: what a device sends (and receives) in one run, by the ring algorithm: all-gather and reduce-scatter
            move (n-1)/n of the whole, all-reduce twice that, all-to-all (n-1)/n of the operand, a permutation all.
        count: runs per step.
        count_is_exact: False if a loop's trip count is unknown; the loop then counts once.
        is_async: whether the device may compute meanwhile.
        phase: the part of the step that caused it.
        module: the model's part, as named by scopes or by the functions of the source; empty if unknown.
        source: the user's line; None if the compiler kept none.
        leaves: paths of the leaves of state or batch that are moved; empty for a computed value, or if unknown.
        value: a description of what is moved, if it is not a leaf.
        seconds: estimated for one run on the target's links; None without a target.
        waited: the part of `seconds` for which the device waits, on average; the rest is hidden behind computation.
        gradients: paths of the leaves whose gradients are summed, largest first; several if they are joined.
    """

    kind: CollectiveKind
    name: str
    axes: tuple[str, ...]
    group_size: int
    crosses_hosts: bool | None
    dtype: str
    operand_bytes: int
    bytes_moved: int
    count: int
    count_is_exact: bool
    is_async: bool
    phase: Phase
    module: str
    source: SourceLine | None
    leaves: tuple[str, ...]
    value: str
    seconds: float | None = None
    waited: float | None = None
    gradients: tuple[str, ...] = ()

    @property
    def leaf(self) -> str:
        """The leaf that is moved; of several the first and the number of the others; empty if none is."""
        more = f" and {len(self.leaves) - 1} more" if len(self.leaves) > 1 else ""
        return f"{self.leaves[0]}{more}" if self.leaves else ""

    @property
    def bytes_per_step(self) -> int:
        """The bytes that a device sends in a step."""
        return self.bytes_moved * self.count


@dataclass(frozen=True)
class ValueFacts(OneLine):
    """One large value that the program holds, and where it comes from."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    what: str
    source: SourceLine | None


@dataclass(frozen=True)
class HostCopyFacts:
    """Copies between a device and its host for one line, or for one leaf of the state.

    Attributes:
        to_host: the direction.
        leaf: the leaf of the state that lives on the host; empty for a value that is stored there for the backward
            pass.
        phase: the part of the step; empty for a leaf.
        source: the line of the value; None for a leaf, or if the compiler kept none.
        count: runs per step.
        bytes_per_step: the bytes of all these copies.
    """

    to_host: bool
    leaf: str
    phase: str
    source: SourceLine | None
    count: int
    bytes_per_step: int


@dataclass(frozen=True)
class RecomputedFacts:
    """Matrix products and convolutions of one line that the backward pass recomputes.

    Attributes:
        module: the model's part; empty if unknown.
        source: the line; None if the compiler kept none.
        count: runs per step.
        flops_per_step: FLOPs of all of them.
    """

    module: str
    source: SourceLine | None
    count: int
    flops_per_step: float


@dataclass(frozen=True)
class MemoryFacts(OneLine):
    """Memory of one device, in bytes; from `temporaries` on, the compiler's own figures.

    What the host stores for the device counts in `on_host` only.

    Attributes:
        params: the parameters: `nnx.Param`, and leaves below `params` or `model`.
        optimizer: the state of optimizers: `nnx.OptState`, and leaves below `opt_state` or `optimizer`.
        other_state: the rest of the state.
        batch: the batch.
        arguments: everything that is passed in, as the compiler counts it.
        outputs: everything that comes out, including what reuses donated memory.
        donated: bytes of arguments whose memory outputs reuse.
        temporaries: what the step needs besides.
        constants: arrays that are part of the program itself, such as those that the step closes over.
        peak: what must be there at once: arguments, outputs that do not reuse donated memory, constants, and
            temporaries, which are allocated in one piece; without what is on the host.
        on_host: what is in host memory: leaves of the state, and values.
        capacity: the device's memory; None without a target.
        needed: what the runtime takes of it for this program: the peak, losses between blocks, and the runtime's own
            use.
        pool: what JAX takes of it for its pool, by `XLA_PYTHON_CLIENT_MEM_FRACTION` or by default.
        most: what JAX could take of it.
        assumed: the assumptions behind `needed`, in words.
        largest: the ten largest values.
        values_on_host: of what is on the host, values on their way from the forward to the backward pass.
        other_kinds: what is known of the rest of the state, and its bytes: batch statistics, random state, metrics,
            and other variables of NNX by their type.
    """

    params: int
    optimizer: int
    other_state: int
    batch: int
    arguments: int
    outputs: int
    donated: int
    temporaries: int
    constants: int
    peak: int
    on_host: int
    capacity: int | None
    needed: int
    pool: int
    most: int
    assumed: tuple[str, ...]
    largest: tuple[ValueFacts, ...]
    values_on_host: int = 0
    other_kinds: tuple[tuple[str, int], ...] = ()

    @property
    def state_by_kind(self) -> dict[str, int]:
        """Bytes of the state by what its leaves are, in words."""
        known = dict(self.other_kinds)
        other = self.other_state - sum(known.values())
        return {"parameters": self.params, "optimizer": self.optimizer, **known, "other state": other}

    @property
    def verdict(self) -> Verdict | None:
        """`fits`; `may not fit`: not as JAX is set, but if it takes more; `does not fit`; None without a target."""
        if self.capacity is None:
            return None
        if self.needed <= self.pool:
            return "fits"
        return "may not fit" if self.peak <= self.most else "does not fit"

    @property
    def fraction(self) -> float | None:
        """The share of a GPU's memory that JAX must be told to take; None where that which it takes suffices."""
        if self.verdict != "may not fit":
            return None
        # A larger pool would leave too little for CUDA and its libraries.
        return min(_LARGEST_POOL, math.ceil(100 * self.needed / (self.capacity or 1)) / 100)

    @property
    def fits(self) -> bool | None:
        """Whether it can be made to fit; None without a target."""
        return None if self.capacity is None else self.verdict != "does not fit"


@dataclass(frozen=True)
class WorkFacts(OneLine):
    """What one device computes in a step.

    Attributes:
        flops: floating-point operations of the traced step, divided evenly among the devices, loops multiplied out;
            None if only the compiled program is known.
        flops_compiled: those of the matrix products and convolutions in the compiled program of one device; more than
            its share of `flops` means that devices repeat one another's work (or recompute on purpose, by remat).
        bytes_accessed: what the compiled program reads and writes in memory.
        flops_by_dtype: `flops_compiled` by the dtype of the operands.
    """

    flops: float | None
    flops_compiled: float
    bytes_accessed: float
    flops_by_dtype: dict[str, float]


@dataclass(frozen=True)
class Segment:
    """A stretch of the step on one lane: computing, sending over links, or copying to the host.

    The body of a loop appears once, as long as all its iterations.

    Attributes:
        lane: `compute`, `links` or `host`.
        kind: `compute`, `host`, or the kind of the collective.
        name: the name of the collective or copy; empty for computation.
        begin: seconds from the start of the step.
        seconds: estimated for all its runs in a step.
        waited: the part of it in which the device does nothing else.
        count: how often it runs.
        loop: the loop that it runs in; empty outside of loops.
    """

    lane: str
    kind: str
    name: str
    begin: float
    seconds: float
    waited: float
    count: int
    loop: str
