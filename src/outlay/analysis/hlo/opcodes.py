"""XLA's operations by what they do with the entries of their operands: one table for all that read compiled programs.

Each opcode stands in one row of `KINDS`; sets that several readers ask for are made of its rows, and what only one
reader needs is made there. An operation in two halves, such as `copy-start` and `copy-done`, is that of its name
without the ending. `core/primitives.py` is the same for JAX's primitives.
"""

from __future__ import annotations

KINDS: dict[str, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        # Entry by entry: an entry of the result is made of the entries at its place.
        "arithmetic": (
            "abs add atan2 cbrt ceil clamp cosine divide erf exponential exponential-minus-one floor is-finite log "
            "log-plus-one logistic map maximum minimum multiply negate power remainder round-nearest-afz "
            "round-nearest-even rsqrt sign sine sqrt subtract tan tanh"
        ),
        "of bits": ("and count-leading-zeros not or popcnt shift-left shift-right-arithmetic shift-right-logical xor"),
        "of complex numbers": "complex imag real",
        "chooses": "compare select",
        "converts": "bitcast-convert convert reduce-precision stochastic-convert",
        "copies": "copy",
        # No data is touched.
        "names": "bitcast get-tuple-element parameter tuple",
        "barriers": "add-dependency after-all domain opt-barrier optimization-barrier",
        # The result holds entries of the operands: all of them, or some.
        "rearranges": "reshape reverse transpose",
        "places": "broadcast concatenate pad",
        "cuts": "dynamic-slice slice",
        "writes into": "dynamic-update-slice",
        "looks up": "gather",
        # Entries are taken together.
        "scatters": "scatter",
        "reduces": "reduce reduce-window select-and-scatter",
        "sorts": "sort topk",
        "multiplies": "convolution dot ragged-dot scaled-dot",
        "factorizes": "cholesky triangular-solve",
        "Fourier": "fft",
        # Values out of none.
        "makes": "constant iota",
        "asks": "get-dimension-size partition-id replica-id set-dimension-size",
        "random": "rng rng-bit-generator rng-get-and-update-state",
        # Values of other devices, and of the host.
        "collective": (
            "all-gather all-reduce all-to-all collective-broadcast collective-permute ragged-all-to-all reduce-scatter"
        ),
        "transfers": "infeed outfeed recv send",
        # Computations are run.
        "control": "call conditional while",
        "fusions": "fusion",
        "asynchronous": "async",
        "library": "custom-call",
    }.items()
}
"""The opcodes by what they do, without the endings of halves; each stands once."""

HALVES = ("-start", "-update", "-done")
"""How the opcodes of an operation end that is started, and waited for later."""


def both_halves(opcodes: frozenset[str]) -> frozenset[str]:
    """Return opcodes, and the opcodes of their halves.

    >>> sorted(both_halves(frozenset(["copy"])))
    ['copy', 'copy-done', 'copy-start', 'copy-update']
    """
    return opcodes | {f"{opcode}{half}" for opcode in opcodes for half in HALVES}


def kind_of(opcode: str) -> str | None:
    """Return the row of an opcode; None if it has none.

    >>> kind_of("dot"), kind_of("all-gather-start"), kind_of("async-update"), kind_of("no such operation")
    ('multiplies', 'collective', 'asynchronous', None)
    """
    names = {opcode, *(opcode.removesuffix(half) for half in HALVES)}
    return next((kind for kind, opcodes in KINDS.items() if not opcodes.isdisjoint(names)), None)


NAMES = KINDS["names"]
"""Opcodes that allocate nothing: their result is another name for memory that exists already."""

CONTROL = KINDS["control"]
"""Opcodes that run other computations, and do nothing besides."""

FUSIONS = KINDS["fusions"] | {"fusion-start"}
"""Opcodes that run a computation as one kernel."""

BARRIERS = KINDS["barriers"] - {"after-all"}
"""Opcodes that only keep others in order, and hand on their operand."""

RESHAPED = KINDS["copies"] | {"bitcast", "convert", "reshape"}
"""The result has the entries of the operand in their order: as another array, type or shape."""

REARRANGED = RESHAPED | KINDS["converts"] | KINDS["rearranges"]
"""The result has all entries of the operand, and no others."""

EACH_ENTRY = frozenset().union(
    *(KINDS[kind] for kind in ("arithmetic", "of bits", "of complex numbers", "chooses", "converts"))
)
"""An entry of the result is made of the entries of the operands at its place."""

MOVES = frozenset().union(
    REARRANGED, NAMES, BARRIERS, *(KINDS[kind] for kind in ("places", "cuts", "writes into", "makes", "asks"))
)
"""No arithmetic: entries are moved within a device, or made out of none."""
