"""What the compiler for TPUs makes of a program, before it writes machine code.

The optimized program, its schedule and where its buffers lie are all that facts are read from. They are there in a
minute or two; machine code takes ten times as long. So the compiler is told to write them to a folder, and is ended
when they are there. A fault that it meets only in machine code is not seen.
"""

import re
import tempfile
import threading
import time
from pathlib import Path

ALLOCATION = re.compile(r"^allocation \d+: size (?P<size>\d+)(?:, color (?P<color>\d+))?, (?P<what>.*)$", re.MULTILINE)
DEVICE, HOST = "0", "5"
"""The compiler's colours of what lies in a device's memory, which it leaves out, and in the host's."""
TOTAL = re.compile(r"Memory Space: default \(color=0\)\nTotal bytes: (\d+)")
PROGRAM, BUFFERS, USAGE = (
    f"*.after_optimizations{name}.txt"
    for name in ("_after_buffer_assignment", "-buffer-assignment", "-memory-usage-report")
)


def before_machine_code(compile_with):
    """Return the text of an optimized program and its figures of memory, by name as `memory_analysis` has them.

    Args:
        compile_with: compiles it with some options besides its own; it is left to itself when what is asked is there.

    Raises:
        Exception: what the compiler says of a program that it refuses.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        failed = []

        def compile_it():
            try:
                compile_with({"xla_dump_to": folder, "xla_dump_hlo_as_text": True, "xla_syntax_sugar_async_ops": True})
            except Exception as error:
                failed.append(error)

        compiling = threading.Thread(target=compile_it, daemon=True)
        compiling.start()
        while (text := _written(Path(folder), PROGRAM)) is None:
            if failed:
                raise failed[0]
            if not compiling.is_alive() and not [*Path(folder).glob(PROGRAM)]:
                raise RuntimeError(f"the compiler wrote no {PROGRAM}: its options have other names now")
            time.sleep(0.5)
        return text, memory_of(_written(Path(folder), BUFFERS), _written(Path(folder), USAGE))


def _written(folder, pattern):
    """Return a file of the dump when nothing is added to it any more; None before."""
    paths = sorted(folder.glob(pattern))
    if not paths:
        return None
    size = paths[-1].stat().st_size
    time.sleep(1)
    return paths[-1].read_text() if size and paths[-1].stat().st_size == size else None


def memory_of(buffers: str, usage: str) -> dict[str, int]:
    """Return figures of memory by a dump of where buffers lie, and of how much there is of them at once."""
    sizes = {}

    def add(name, size):
        sizes[f"{name}_in_bytes"] = sizes.get(f"{name}_in_bytes", 0) + size

    for one in ALLOCATION.finditer(buffers):
        color, what, size = one["color"] or DEVICE, one["what"], int(one["size"])
        if color not in (DEVICE, HOST):
            continue
        where = "host_" if color == HOST else ""
        is_argument, is_output = "parameter" in what, "maybe-live-out" in what
        kinds = {"argument": is_argument, "output": is_output, "alias": is_argument and is_output}
        kinds["temp"] = "preallocated-temp" in what
        for name, is_one in kinds.items():
            add(f"{where}{name}_size", size * is_one)
    total = TOTAL.search(usage)
    return {**sizes, "peak_memory_in_bytes": int(total[1]) if total else 0}
