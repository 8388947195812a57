"""Loops over those vectors of a row that a spike reaches, in the language of LLVM.

A row's delays say which vectors are reached: they are listed, and only they are loaded. Those at which a spike arrived
a step before, or all where the neuron spiked, are changed; those at which one arrives now are added up. There are two
lists, since a branch for each vector would be guessed wrong.

What the rule keeps of pairs that were left out is behind: it goes on before the change, by the equations of a quiet row
at which no spike arrives, as many times as the vector was left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlay.brain.fused.pair_pass import BOOL, UINT32, PairPass
from outlay.brain.fused.row_code import LANES, RowCode, Value
from outlay.brain.fused.row_equations import View
from outlay.brain.fused.row_loops import NEURON, RowLoop, bit, first_lanes
from outlay.brain.fused.sparse_steps import CATCH_UP, DENSE

MOST_BEHIND = 8
"""A row goes on as a whole every so many steps, so that no vector is further behind: a power of two. Longer chains of
steps leave the processor waiting (measured)."""
ANY_LANE = (1 << LANES) - 1
"""The lanes of a vector any of which may be reached."""
GROUP = 4
"""Vectors that go on together, since each of their steps waits for the one before."""


def begin_sparse(whole: PairPass, first: int) -> str:
    """Return code of what all rows look at, and of the lists of a row's vectors.

    Args:
        whole: the pass.
        first: the number of its first argument that is about sparse steps.
    """
    assert whole.sparse
    num_vectors, size = whole.sparse.num_vectors, whole.num_inputs
    code = RowCode("some_", size)
    words = code.load(View.of(f"%a{whole.words_at}", UINT32, (size,)))
    is_some = Value(code.emit(f"icmp ne {words.type} {words.name}, zeroinitializer", True), BOOL, True)
    vector = code.emit(f"lshr i64 {code.column}, {LANES.bit_length() - 1}", True)
    at = code.emit(f"getelementptr i64, ptr %every, i64 {vector}", True)
    code.lines.append(f"store i64 {code.column}, ptr {at}")
    _append(code, "some", "%some_num", _any(code, is_some))
    return "\n" + "\n".join(
        [
            *(f"  %{what} = alloca i64, i64 {num_vectors}" for what in ("every", "some", "changes", "currents")),
            f"  %mode = load i8, ptr %a{first}",
            f"  %is_dense = icmp eq i8 %mode, {DENSE}",
            f"  %is_catching_up = icmp eq i8 %mode, {CATCH_UP}",
            f"  %now_at = getelementptr i8, ptr %a{first}, i64 1",
            "  %now = load i8, ptr %now_at",
            # Those at which no spike arrives in any row are never looked at.
            "  br i1 %is_dense, label %begin, label %some_head",
            "some_head:",
            "  %some_j = phi i64 [0, %start], [%some_j_next, %some_body]",
            "  %some_num = phi i64 [0, %start], [%some_num_next, %some_body]",
            f"  %some_more = icmp ult i64 %some_j, {size - size % LANES}",
            "  br i1 %some_more, label %some_body, label %begin",
            "some_body:",
            *code.before,
            *code.lines,
            f"  %some_j_next = add i64 %some_j, {LANES}",
            "  br label %some_head",
            "begin:",
            "  %num_some = phi i64 [0, %start], [%some_num, %some_head]",
        ]
    )


def choose_sparse(whole: PairPass, dense: str, sparse: str) -> str:
    """Return a jump to the loop over the pairs of a row.

    Args:
        whole: the pass.
        dense: the jump in a dense step.
        sparse: the jump in another.
    """
    assert whole.sparse
    turn = "  %is_whole = or i1 false, %is_catching_up"
    if whole.sparse.unreached.goes_on:
        # Rows take turns by their numbers, so that no step does this for all of them.
        turn = f"""
  %turn = trunc i64 %i to i8
  %turn_now = add i8 %turn, %now
  %turn_of = and i8 %turn_now, {MOST_BEHIND - 1}
  %is_turn = icmp eq i8 %turn_of, 0
  %is_whole = or i1 %is_catching_up, %is_turn"""
    return f"""
  br i1 %is_dense, label %dense_row, label %sparse_row
dense_row:
{dense}
sparse_row:
{turn}
{sparse}"""


def sparse_loop(loop: RowLoop, result: int) -> SparseLoop:
    """Return the loop over the vectors of the same kind of row that are reached.

    Args:
        loop: the loop over all.
        result: the number of the result that says how far each vector is.
    """
    return SparseLoop(loop.whole, f"sparse_{loop.name}", loop.row, loop.consts, f"%r{result}")


@dataclass(frozen=True)
class SparseLoop(RowLoop):
    """The loop over the vectors of one kind of row that are reached.

    Attributes:
        whole: as of `RowLoop`.
        name: likewise.
        row: likewise.
        consts: likewise.
        vectors: the array of the last step of each vector.
    """

    vectors: str

    @property
    def is_whole(self) -> str:
        """Whether all vectors of the row are changed."""
        return {"sparse_first": "false", "sparse_quiet": "%is_whole", "sparse_spiking": "true"}[self.name]

    @property
    def goes_on(self) -> bool:
        """Whether what the rule keeps goes on by itself where a vector is left out."""
        return self.row is not None and self.whole.sparse is not None and self.whole.sparse.unreached.goes_on

    def code(self) -> str:
        """Return code that lists the vectors that are reached, does these, then the rest of the row with a mask."""
        name, size = self.name, self.whole.num_inputs
        listed = RowCode(f"{name}_list_", size)
        changes, currents = RowCode(f"{name}_change_", size), RowCode(f"{name}_current_", size)
        rest = RowCode(f"{name}_rest_", size, first_lanes(size % LANES))
        self._list(listed)
        if self.row is not None:
            self._change(changes)
        words, _ = self.arriving(currents)
        kernel = View.of_row("%r0" if self.row else "%a0", self.whole.rows[0], size, NEURON)
        self.add_current(currents, words, currents.number(kernel))
        # What is left of a row is done in each step.
        if size % LANES:
            self._vector(rest)
        whole = size - size % LANES
        before = f"{name}_grouped" if self.goes_on else f"{name}_list"
        every, place = str(whole // LANES), f"%{name}_list_place"
        is_whole, listed_to = self.is_whole, f"{name}_groups" if self.goes_on else f"{name}_change"
        return "\n".join(
            [
                f"{name}_row:",
                *(line for code in (listed, changes, currents, rest) for line in code.before),
                f"  %{name}_from = select i1 {is_whole}, ptr %every, ptr %some",
                f"  %{name}_num = select i1 {is_whole}, i64 {every}, i64 %num_some",
                f"  br label %{name}_list",
                f"{name}_list:",
                f"  {place} = phi i64 [0, %{name}_row], [{place}_next, %{name}_listed]",
                f"  %{name}_changes = phi i64 [0, %{name}_row], [%{name}_changes_next, %{name}_listed]",
                f"  %{name}_currents = phi i64 [0, %{name}_row], [%{name}_currents_next, %{name}_listed]",
                f"  {place}_more = icmp ult i64 {place}, %{name}_num",
                f"  br i1 {place}_more, label %{name}_listed, label %{listed_to}",
                f"{name}_listed:",
                f"  {place}_at = getelementptr i64, ptr %{name}_from, i64 {place}",
                f"  {listed.column} = load i64, ptr {place}_at",
                *listed.lines,
                f"  {place}_next = add i64 {place}, 1",
                f"  br label %{name}_list",
                *(self._groups() if self.goes_on else []),
                *self._of_list("change", changes, before, f"{name}_current"),
                *self._of_list("current", currents, f"{name}_change", f"{name}_rest"),
                f"{name}_rest:",
                f"  {rest.column} = add i64 0, {whole}",
                *rest.lines,
                "  br label %sum\n",
            ]
        )

    def _of_list(self, what: str, code: RowCode, before: str, then: str) -> list[str]:
        """Return a loop over the vectors of a list."""
        label = f"{self.name}_{what}"
        place = f"%{label}_place"
        return [
            f"{label}:",
            f"  {place} = phi i64 [0, %{before}], [{place}_next, %{label}_end]",
            f"  {place}_more = icmp ult i64 {place}, %{label}s",
            f"  br i1 {place}_more, label %{label}_begin, label %{then}",
            f"{label}_begin:",
            f"  {place}_at = getelementptr i64, ptr %{what}s, i64 {place}",
            f"  {code.column} = load i64, ptr {place}_at",
            *code.lines,
            f"  br label %{label}_end",
            f"{label}_end:",
            f"  {place}_next = add i64 {place}, 1",
            f"  br label %{label}",
        ]

    def _list(self, code: RowCode) -> None:
        """Append a vector to the lists that it belongs to."""
        words, _ = self.arriving(code)
        of_step_before = _any(code, bit(code, words, 2))
        is_changed = code.emit(f"or i1 {of_step_before}, {self.is_whole}", True) if self.row else "false"
        for what, belongs in (("changes", is_changed), ("currents", _any(code, bit(code, words, 1)))):
            _append(code, what, f"%{self.name}_{what}", belongs)

    def _change(self, code: RowCode) -> None:
        """Add what is done for a vector that is changed."""
        words, delays = self.arriving(code)
        rows = self.views(code)
        if self.goes_on:
            rows = self._gone_on(code, delays, [code.number(row) for row in rows])
        self.changed(code, words, delays, rows)

    def _gone_on(self, code: RowCode, delays: Value | None, rows: list[Value]) -> list[Value | View]:
        """Return what the rule keeps, gone on by as many steps as the vector was left out."""
        last, missed = self._missed(code)
        code.lines.append(f"store i8 %now, ptr {last}")
        chain = self._chain(code, f"{self.name}_go", delays, rows)
        code.lines += _repeated(f"{self.name}_go", missed, [chain])
        return [rows[0], *chain.values]

    def _groups(self) -> list[str]:
        """Return a loop over some vectors at once, where a whole row goes on, by the steps that all of them missed."""
        name, codes, chains, label = self.name, [], [], f"{self.name}_together"
        missed, stored = "", []
        for k in range(GROUP):
            code = RowCode(f"{name}_group_{k}_", self.whole.num_inputs)
            code.lines.append(f"{code.column} = add i64 %{name}_first, {k * LANES}")
            last, of_vector = self._missed(code)
            if missed:
                fewer = code.emit(f"icmp ult i8 {of_vector}, {missed}", True)
                of_vector = code.emit(f"select i1 {fewer}, i8 {of_vector}, i8 {missed}", True)
            missed = of_vector
            delays, rows = self.arriving(code)[1], [code.number(row) for row in self.views(code)]
            chains.append(self._chain(code, f"{label}_{k}", delays, rows))
            after = RowCode(f"{code.prefix}after_", code.size)
            after.lines.append(f"{after.column} = add i64 {code.column}, 0")
            for row, value in enumerate(chains[-1].values, start=1):
                after.store(value, View.of_row(f"%r{row}", self.whole.rows[row], code.size, NEURON))
            before = after.emit(f"load i8, ptr {last}", True)
            stored.append((after, before, last))
            codes.append(code)
        for after, before, last in stored:
            after.lines.append(f"store i8 {after.emit(f'add i8 {before}, {missed}', True)}, ptr {last}")
            codes.append(after)
        whole = self.whole.num_inputs // (LANES * GROUP) * LANES * GROUP
        return [
            f"{name}_groups:",
            *(line for code in codes for line in code.before),
            f"  br i1 {self.is_whole}, label %{name}_group, label %{name}_grouped",
            f"{name}_group:",
            f"  %{name}_first = phi i64 [0, %{name}_groups], [%{name}_first_next, %{name}_group_end]",
            f"  %{name}_first_more = icmp ult i64 %{name}_first, {whole}",
            f"  br i1 %{name}_first_more, label %{name}_group_begin, label %{name}_grouped",
            f"{name}_group_begin:",
            *(line for code in codes[:GROUP] for line in code.lines),
            *_repeated(label, missed, chains),
            *(line for code in codes[GROUP:] for line in code.lines),
            f"  br label %{name}_group_end",
            f"{name}_group_end:",
            f"  %{name}_first_next = add i64 %{name}_first, {LANES * GROUP}",
            f"  br label %{name}_group",
            f"{name}_grouped:",
            f"  br label %{name}_change",
        ]

    def _missed(self, code: RowCode) -> tuple[str, str]:
        """Return where the number of a vector's last step is, and how many steps it was left out since."""
        assert self.whole.sparse
        first = code.emit(f"mul i64 %i, {self.whole.sparse.num_vectors}", True)
        vector = code.emit(f"lshr i64 {code.column}, {LANES.bit_length() - 1}", True)
        place = code.emit(f"add i64 {first}, {vector}", True)
        at = code.emit(f"getelementptr i8, ptr {self.vectors}, i64 {place}", True)
        last = code.emit(f"load i8, ptr {at}", True)
        since = code.emit(f"sub i8 %now, {last}", True)
        return at, code.emit(f"sub i8 {since}, 1", True)

    def _chain(self, code: RowCode, label: str, delays: Value | None, rows: list[Value]) -> _Chain:
        """Return what is repeated so that what the rule keeps of a vector goes on."""
        values = [Value(f"%{label}_{k}_now", row.dtype, True) for k, row in enumerate(rows[1:])]
        head, loaded = len(code.lines), dict(code.loaded)
        after = self.equations(code, Value("zeroinitializer", BOOL, True), delays, [rows[0], *values])
        names = [code.vector(code.number(row)).name for row in after[1:]]
        body, code.lines = code.lines[head:], code.lines[:head]
        # What was loaded for a step that was missed is not there if none was.
        code.loaded = loaded
        return _Chain(values, [row.name for row in rows[1:]], names, body)


@dataclass(frozen=True)
class _Chain:
    """Steps of what the rule keeps of a vector, one after the other.

    Attributes:
        values: before a step.
        first: their names before the first step.
        after: their names after a step.
        body: the code of a step.
    """

    values: list[Value]
    first: list[str]
    after: list[str]
    body: list[str]


def _repeated(label: str, num: str, chains: list[_Chain]) -> list[str]:
    """Return a loop of so many steps of some vectors."""
    return [
        f"br label %{label}_enter",
        f"{label}_enter:",
        f"br label %{label}_head",
        f"{label}_head:",
        f"%{label}_left = phi i8 [{num}, %{label}_enter], [%{label}_left_next, %{label}_body]",
        *(
            f"{value.name} = phi {value.type} [{first}, %{label}_enter], [{after}, %{label}_body]"
            for chain in chains
            for value, first, after in zip(chain.values, chain.first, chain.after, strict=True)
        ),
        f"%{label}_more = icmp ne i8 %{label}_left, 0",
        f"br i1 %{label}_more, label %{label}_body, label %{label}_done",
        f"{label}_body:",
        *(line for chain in chains for line in chain.body),
        f"%{label}_left_next = sub i8 %{label}_left, 1",
        f"br label %{label}_head",
        f"{label}_done:",
    ]


def _append(code: RowCode, what: str, num: str, belongs: str) -> None:
    """Append a vector to a list, if it belongs there."""
    at = code.emit(f"getelementptr i64, ptr %{what}, i64 {num}", True)
    code.lines.append(f"store i64 {code.column}, ptr {at}")
    one = code.emit(f"zext i1 {belongs} to i64", True)
    code.lines.append(f"{num}_next = add i64 {num}, {one}")


def _any(code: RowCode, where: Value) -> str:
    """Return whether any lane is set."""
    bits = code.emit(f"bitcast {where.type} {where.name} to i{LANES}", True)
    some = code.emit(f"and i{LANES} {bits}, {ANY_LANE}", True)
    return code.emit(f"icmp ne i{LANES} {some}, 0", True)
