"""How several threads share the rows of functions in machine code: the code that XLA calls.

Each function computes rows of its own arrays; one call is of one or more functions, and its rows are all of theirs. A
thread computes some rows at once, a piece. The call asks threads of XLA's own pool to help. Each thread begins with the
pieces of the core that it is on, which are in that core's cache since the last call, and then takes pieces that no
thread has begun. Every second call goes through the pieces backwards: what the last call touched last is still in the
cache, whatever has been pushed out of it. The caller does not wait for threads that have not begun. So if all threads
of the pool are busy, or a fork left none, only their help is lost. The last thread to leave frees the shared memory.
Waking a thread takes longer than many a call; so a thread that has helped waits for a moment, and the next call asks it
first.

The code stands in `pieces_of_rows.ll` and `shared_rows.ll`, in LLVM's language; words in capitals are put in where a
function is compiled, those behind a `$` here.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

ARRAYS = "ptr %arguments, ptr %results, i64 %turn"

JOB = "{ i64, i64, i64, i64, i64, ptr, ptr, ptr }"
"""The memory that threads share: the pieces done, the threads that still use it; then, unchanged, the number of pieces,
1 if they are taken backwards, the number of threads, the arrays, and the function that computes pieces. The number of
pieces taken of each core follows, `LINE` bytes apart."""
LINE = 64
"""The size of a cache line in bytes."""
LONG_WAIT = 2000
"""How often the caller pauses while it waits for the last pieces before it yields its core, to a thread that has begun
one and was interrupted. Not sooner: where other programs run, who yields gets its core back after milliseconds."""
WAITING = 1
"""The value of a place where a thread waits; 0 if none waits there, and the address of the job if one was asked."""
ENTRY = "{ ptr, i64, i64, i64 }"
"""A function of the table: its address, its first argument and result, and the rows of a piece."""


def _code(file: str) -> str:
    """Return the code of a file beside this one, with the constants of this one."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    constants = {"ARRAYS": ARRAYS, "ENTRY": ENTRY, "JOB": JOB, "LINE": LINE, "LONG_WAIT": LONG_WAIT, "WAITING": WAITING}
    return Template(text).substitute(constants)


PIECES, SHARED = _code("pieces_of_rows.ll"), _code("shared_rows.ll")
