"""One pass over the pairs of a population: the change that the last step left, and the current of this one.

A row at a time, `LANES` pairs at once: kernel and what the rule keeps are read, changed, summed where a spike arrives,
and written. Rows of neurons that spiked have code of their own. All is in machine code that is made of the rule's
equations, so that a rule says them once.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from outlay.brain.delays import FEW_STEPS
from outlay.brain.fast_cpu.row_code import LANES, SUFFIX, RowCode, Value, View
from outlay.brain.synapses import num_lanes
from outlay.core.jax_machine_code import PIECES_OF_THREAD, NoMachineCode, at_most_threads, compile_function, num_threads

BOOL, UINT8, UINT32, FLOAT = (jnp.dtype(name) for name in ("bool", "uint8", "uint32", "float32"))
PAIRS_AT_ONCE, PAIRS_AT_ONCE_OF_NO_RULE = 8192, 16384
"""The least pairs of a thread's next piece: two microseconds. Asking another thread takes five (measured)."""


@dataclass(frozen=True)
class TracedRow:
    """The equations of a row as JAX traced them: of the neuron's number, its rows, where a spike arrived, its delays.

    Attributes:
        jaxpr: the equations; they give the rows after the step.
        consts: shape and dtype of the arrays that they close over.
    """

    jaxpr: Any
    consts: tuple[jax.ShapeDtypeStruct, ...]


@dataclass(frozen=True)
class PairPass:
    """What the pass is about.

    Attributes:
        rows: dtypes of the arrays with an entry for each pair: the kernel, then what the rule keeps.
        num_inputs: pre neurons.
        delays: dtype of the delays of each pair; None where they are none, or of pre neurons.
        quiet: the equations of a row whose neuron did not spike; None without a rule.
        spiking: of one whose neuron spiked.
    """

    rows: tuple[np.dtype, ...]
    num_inputs: int
    delays: np.dtype | None
    quiet: TracedRow | None
    spiking: TracedRow | None

    def __call__(
        self,
        rows: list[jax.Array],
        delays: jax.Array | None,
        words: jax.Array,
        sign: jax.Array,
        spiked: jax.Array,
        pending: jax.Array,
        consts: list[jax.Array],
    ) -> tuple[list[jax.Array], jax.Array]:
        """The rows after the last step's change, and what spikes bring to each post neuron, in float32.

        Args:
            rows: kernel, and what the rule keeps, (post, pre).
            delays: of each pair.
            words: (pre,): bit 1 says who arrives after a delay of 0 more steps than the pair has, and bit 2 who did a
                step before.
            sign: of each pre neuron's spikes, (pre,), 1 or -1.
            spiked: which post neurons spiked in the last step.
            pending: whether there was a last step, whose change is still to be made.
            consts: what the equations close over, those of quiet rows first.
        """
        units, num_rows = rows[0].shape[0], len(rows) if self.quiet else 0
        inputs = [*rows, *([] if delays is None else [delays]), words, sign, spiked, pending, *consts]
        shapes = [jax.ShapeDtypeStruct(row.shape, row.dtype) for row in rows[:num_rows]]
        call = jax.ffi.ffi_call(
            self.function,
            (*shapes, jax.ShapeDtypeStruct((units,), FLOAT)),
            input_output_aliases={k: k for k in range(num_rows)},
        )
        *after, current = call(*inputs)
        return list(after) or rows, current

    @property
    def piece(self) -> int:
        """How many rows a thread computes at once."""
        return -(-(PAIRS_AT_ONCE if self.quiet else PAIRS_AT_ONCE_OF_NO_RULE) // self.num_inputs)

    @functools.cached_property
    def function(self) -> str:
        """The compiled function's name.

        Raises:
            NotCompiled: an equation is of a kind that is not known.
            NoMachineCode: nothing can be compiled here.
        """
        num_rows, pair = len(self.rows), self.delays is not None
        words = num_rows + pair
        consts = words + 4
        traced = (
            [] if self.quiet is None or self.spiking is None else [(self.quiet, "quiet"), (self.spiking, "spiking")]
        )
        loops = [_Loop(self, "first", words, None, [])]
        for row, name in traced:
            loops.append(_Loop(self, name, words, row, [f"%a{consts + k}" for k in range(len(row.consts))]))
            consts += len(row.consts)
        choose = "  br label %first_row"
        if traced:
            choose = f"""
  %pending = load i8, ptr %a{words + 3}
  %is_pending = icmp ne i8 %pending, 0
  %spiked_at = getelementptr i8, ptr %a{words + 2}, i64 %i
  %spiked = load i8, ptr %spiked_at
  %is_spiked = icmp ne i8 %spiked, 0
  br i1 %is_pending, label %changed_row, label %first_row
changed_row:
  br i1 %is_spiked, label %spiking_row, label %quiet_row"""
        num_sums = num_lanes(self.num_inputs) // LANES
        body = f"""
  %sums = alloca <{LANES} x float>, i64 {num_sums}
  br label %rows
rows:
  %i = phi i64 [%first, %start], [%next_i, %sum]
  %more = icmp ult i64 %i, %last
  br i1 %more, label %row, label %end
row:
  %neuron = trunc i64 %i to i32
  %base = mul i64 %i, {self.num_inputs}
{_zero_sums(num_sums)}
{choose}
{"".join(loop.code() for loop in loops)}
sum:
{_total(num_sums)}
  %current_at = getelementptr float, ptr %r{num_rows if traced else 0}, i64 %i
  store float %total, ptr %current_at
  %next_i = add i64 %i, 1
  br label %rows
end:"""
        return compile_function(body, _declarations(), consts, (num_rows if traced else 0) + 1, self.piece)


@dataclass(frozen=True)
class _Loop:
    """The loop over the pairs of one kind of row.

    Attributes:
        whole: the pass.
        name: what its labels begin with.
        words: which argument has the words of past spikes; sign, spiked and pending follow.
        row: the equations; None where nothing changes.
        consts: names of the arrays that they close over.
    """

    whole: PairPass
    name: str
    words: int
    row: TracedRow | None
    consts: list[str]

    def code(self) -> str:
        """All whole vectors of the row, then one with a mask for what is left."""
        name, size = self.name, self.whole.num_inputs
        main, rest = RowCode(f"{name}_", size), RowCode(f"{name}_rest_", size, _first_lanes(size % LANES))
        whole = size - size % LANES
        for part in (main, rest):
            self._vector(part)
        if not size % LANES:
            rest = RowCode(rest.prefix, size)
        return "\n".join(
            [
                f"{name}_row:",
                *main.before,
                *rest.before,
                f"  br label %{name}_head",
                f"{name}_head:",
                f"  {main.column} = phi i64 [0, %{name}_row], [{main.column}_next, %{name}_body]",
                f"  {main.column}_more = icmp ult i64 {main.column}, {whole}",
                f"  br i1 {main.column}_more, label %{name}_body, label %{name}_rest",
                f"{name}_body:",
                *main.lines,
                f"  {main.column}_next = add i64 {main.column}, {LANES}",
                f"  br label %{name}_head",
                f"{name}_rest:",
                f"  {rest.column} = add i64 0, {whole}",
                *rest.lines,
                "  br label %sum\n",
            ]
        )

    def _vector(self, code: RowCode) -> None:
        """What is done for the pairs of one vector."""
        size, rows = self.whole.num_inputs, self.whole.rows
        views = [View(f"%a{k}", dtype, (size,), (1,), "%base") for k, dtype in enumerate(rows)]
        words = code.load(View(f"%a{self.words}", UINT32, (size,), (1,)))
        sign = code.load(View(f"%a{self.words + 1}", FLOAT, (size,), (1,)))
        inputs: list[Value | View] = [Value("%neuron", UINT32, False), *views]
        if self.whole.delays is not None:
            delays = code.load(View(f"%a{len(rows)}", self.whole.delays, (size,), (1,), "%base"))
            shifted = code.emit(f"lshr {words.type} {words.name}, {delays.name}", True)
            words = Value(shifted, UINT32, True)
            inputs.append(delays)
        kernel = code.number(views[0])
        if self.row is not None:
            inputs.insert(1 + len(rows), _bit(code, words, 2))
            closed = [
                View.whole(name, like.dtype, like.shape)
                for name, like in zip(self.consts, self.row.consts, strict=True)
            ]
            after = code.equations(self.row.jaxpr, closed, inputs)
            for k, (row, view) in enumerate(zip(after, views, strict=True)):
                code.store(code.number(row), View(f"%r{k}", view.dtype, (size,), (1,), "%base"))
            kernel = code.vector(code.number(after[0]))
        signed = code.emit(f"fmul {kernel.type} {kernel.name}, {sign.name}", True)
        brought = code.emit(
            f"select <{LANES} x i1> {_bit(code, words, 1).name}, {kernel.type} {signed}, {kernel.type} zeroinitializer",
            True,
        )
        block = code.emit(f"lshr i64 {code.column}, {LANES.bit_length() - 1}", True)
        lane = code.emit(f"and i64 {block}, {num_lanes(size) // LANES - 1}", True)
        at = code.emit(f"getelementptr <{LANES} x float>, ptr %sums, i64 {lane}", True)
        before = code.emit(f"load {kernel.type}, ptr {at}", True)
        total = code.emit(f"fadd {kernel.type} {before}, {brought}", True)
        code.lines.append(f"store {kernel.type} {total}, ptr {at}")


def _bit(code: RowCode, words: Value, bit: int) -> Value:
    """Where a bit of the words is set."""
    mask = f"<{', '.join([f'i32 {bit}'] * LANES)}>"
    chosen = code.emit(f"and {words.type} {words.name}, {mask}", True)
    return Value(code.emit(f"icmp ne {words.type} {chosen}, zeroinitializer", True), BOOL, True)


def _first_lanes(num: int) -> str:
    return f"<{', '.join(f'i1 {int(lane < num)}' for lane in range(LANES))}>"


def _zero_sums(num: int) -> str:
    return "\n".join(
        f"  %sum_{k}_at = getelementptr <{LANES} x float>, ptr %sums, i64 {k}\n"
        f"  store <{LANES} x float> zeroinitializer, ptr %sum_{k}_at"
        for k in range(num)
    )


def _total(num: int) -> str:
    """The sum of all lanes, added in halves as `sum_rows` does."""
    type_, names = f"<{LANES} x float>", [f"%part_{k}" for k in range(num)]
    lines = [f"  {name} = load {type_}, ptr %sum_{k}_at" for k, name in enumerate(names)]
    while len(names) > 1:
        half = len(names) // 2
        both = list(zip(names[:half], names[half:], strict=True))
        names = [f"{low}_{half}" for low, _ in both]
        lines += [f"  {name} = fadd {type_} {low}, {high}" for name, (low, high) in zip(names, both, strict=True)]
    whole, half = names[0], LANES // 2
    while half:
        order = ", ".join(f"i32 {lane + half if lane < half else lane}" for lane in range(LANES))
        lines += [
            f"  %swapped_{half} = shufflevector {type_} {whole}, {type_} poison, <{LANES} x i32> <{order}>",
            f"  %halves_{half} = fadd {type_} {whole}, %swapped_{half}",
        ]
        whole, half = f"%halves_{half}", half // 2
    return "\n".join([*lines, f"  %total = extractelement {type_} {whole}, i32 0"])


def _declarations() -> str:
    """Of loads and stores of some lanes."""
    lines = []
    for kind, suffix in SUFFIX.items():
        type_, mask = f"<{LANES} x {kind}>", f"<{LANES} x i1>"
        lines += [
            f"declare {type_} @llvm.masked.load.v{LANES}{suffix}.p0(ptr, i32, {mask}, {type_})",
            f"declare void @llvm.masked.store.v{LANES}{suffix}.p0({type_}, ptr, i32, {mask})",
        ]
    return "\n".join(lines)


TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Share of the largest entry by which a row may differ: a product and a sum may be rounded as one operation."""
_passed: set[str] = set()
"""The functions that passed."""


def check_pass(pairs: PairPass) -> None:
    """Raise unless a pass computes what JAX makes of the same equations; each is tried once in a process.

    It guards against an interface of XLA, or a processor, that is not as it was taken to be.

    Raises:
        NoMachineCode: it does not.
        NotCompiled: an equation is of a kind that is not known.
    """
    if pairs.function in _passed:
        return

    def compare() -> None:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            _compare(pairs)

    # What is being traced meanwhile, and the mesh that it is traced for, are this thread's alone.
    with ThreadPoolExecutor(1) as other:
        other.submit(compare).result()
    _passed.add(pairs.function)


def _compare(pairs: PairPass) -> None:
    """Compare what both make of two neurons, of which the second spiked; and threads with one, of more neurons."""
    random, num = np.random.default_rng(0), pairs.num_inputs
    num_neurons = 2 * PIECES_OF_THREAD * pairs.piece
    rows = [random.random((num_neurons, num)).astype(dtype) for dtype in pairs.rows]
    words = random.integers(0, 2**32, num, np.uint32)
    sign = random.choice(np.array([-1, 1], np.float32), num)
    own_delays = pairs.delays is not None
    delays = random.integers(1, FEW_STEPS + 1, (num_neurons, num)).astype(pairs.delays or np.uint8)
    seen = words >> (delays if own_delays else np.zeros((num_neurons, num), np.uint32))
    traced = [row for row in (pairs.quiet, pairs.spiking) if row]
    consts = [[_some(random, like) for like in row.consts] for row in traced]
    # Of more neurons than there are, each finds what one of those has.
    repeated = [_repeated(const, num_neurons) for of_row in consts for const in of_row]
    spiked, given = np.arange(num_neurons) % 2 == 1, [jnp.asarray(row) for row in rows]
    for pending in (False, True):
        expected = [row[:2] for row in rows]
        if pending and traced:
            each = [
                _evaluated(traced[i], consts[i], i, [row[i] for row in rows], (seen[i] & 2) != 0, delays[i], own_delays)
                for i in (0, 1)
            ]
            expected = [np.stack(both) for both in zip(*each, strict=True)]
        brought = (expected[0].astype(np.float64) * sign * ((seen[:2] & 1) != 0)).sum(1)
        inputs = given, delays if own_delays else None, words, sign, spiked, np.asarray(pending), repeated
        with at_most_threads(1):
            alone = jax.device_get(jax.jit(pairs)(*inputs))
        after, current = jax.device_get(jax.jit(pairs)(*inputs))
        if not all(map(np.array_equal, *map(jax.tree.leaves, (alone, (after, current))))):
            raise NoMachineCode(f"in its self-test {num_threads.value} threads compute something else than one")
        for name, got, right in zip(["kernel"] * len(rows), after, expected, strict=True):
            _check_close(name, got[:2], right, TOLERANCE[str(right.dtype)])
        _check_close("current", current[:2], brought, TOLERANCE[str(rows[0].dtype)])


def _evaluated(
    row: TracedRow, consts: list[Any], neuron: int, rows: list[Any], arrived: Any, delays: Any, own_delays: bool
) -> list[np.ndarray]:
    """The rows after a step, by JAX."""
    function = jaxpr_as_fun(ClosedJaxpr(row.jaxpr, consts))
    return [
        np.asarray(x) for x in jax.jit(function)(np.uint32(neuron), *rows, arrived, *([delays] if own_delays else []))
    ]


def _repeated(const: np.ndarray, num: int) -> np.ndarray:
    """An array again and again along its first dim, which is at least so long then."""
    return np.concatenate([const] * -(-num // len(const))) if const.ndim else const


def _some(random: np.random.Generator, like: jax.ShapeDtypeStruct) -> np.ndarray:
    """Numbers from 0 to 1; of whole numbers 0 and 1, which are places in an array."""
    if jnp.issubdtype(like.dtype, jnp.floating):
        return random.random(like.shape).astype(like.dtype)
    return random.integers(0, 2, like.shape).astype(like.dtype)


def _check_close(what: str, got: Any, right: np.ndarray, tolerance: float) -> None:
    got, right = np.asarray(got, np.float64), np.asarray(right, np.float64)
    off = np.abs(got - right).max() / max(1e-30, np.abs(right).max())
    if not off <= tolerance:
        raise NoMachineCode(
            f"in its self-test the {what} is off by {off:.2g} of its largest entry, more than {tolerance:g}"
        )
