"""The table of XLA's operations knows each one that has a meaning here, and what it says of them is so."""

import collections

import pytest

from outlay.analysis.hlo.execute.as_function import OPERATIONS
from outlay.analysis.hlo.execute.elementwise import ELEMENTWISE
from outlay.analysis.hlo.execute.exchanging import EXCHANGING
from outlay.analysis.hlo.execute.indexing import INDEXING
from outlay.analysis.hlo.execute.multiplying import MULTIPLYING
from outlay.analysis.hlo.execute.reducing import REDUCING
from outlay.analysis.hlo.execute.shaping import SHAPING
from outlay.analysis.hlo.execute.solving import SOLVING
from outlay.analysis.hlo.execute.transferring import TRANSFERRING
from outlay.analysis.hlo.opcodes import EACH_ENTRY, KINDS, MOVES, kind_of

DATA = {"copies", "converts", "names", "barriers", "rearranges", "places", "makes"}
"""Rows of operations that only arrange data."""


def test_each_operation_with_a_meaning_has_a_row():
    missing = [opcode for opcode in OPERATIONS if kind_of(opcode) is None]
    assert not missing, f"no row of outlay/analysis/hlo/opcodes.py has {missing}"


def test_each_opcode_stands_once():
    counts = collections.Counter(name for names in KINDS.values() for name in names)
    assert not [name for name, count in counts.items() if count > 1]


@pytest.mark.parametrize(
    ("meanings", "kinds"),
    [
        (SHAPING, DATA | {"cuts"}),
        (INDEXING, {"cuts", "writes into", "looks up", "scatters"}),
        (REDUCING, {"reduces", "sorts"}),
        (MULTIPLYING, {"multiplies"}),
        (SOLVING, {"factorizes", "Fourier"}),
        (EXCHANGING, {"collective", "asks"}),
        (TRANSFERRING, {"transfers"}),
    ],
)
def test_what_is_computed_alike_is_of_one_kind(meanings, kinds):
    assert {opcode: kind for opcode in meanings if (kind := kind_of(opcode)) not in kinds} == {}


def test_what_is_computed_entry_by_entry_is_of_such_a_kind_and_nothing_else():
    others = {"bitcast-convert", "stochastic-convert"}  # of other bits; by random numbers
    assert EACH_ENTRY - others == set(ELEMENTWISE)


def test_what_only_moves_data_has_no_arithmetic():
    assert MOVES.isdisjoint(KINDS["arithmetic"] | KINDS["multiplies"] | KINDS["reduces"])
