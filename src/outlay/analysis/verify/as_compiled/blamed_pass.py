"""Find the pass of a compiler that makes a right program wrong, among the texts that the compiler keeps after each."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from outlay.analysis.attribution.provenance import origin_of
from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.hlo.opcodes import BARRIERS, CONTROL, FUSIONS, KINDS, NAMES
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled.structure import Axes, Collective, structure_of
from outlay.core.jax_compat import without_compilation_cache

_KEEPS: Mapping[str, Any] = {
    "xla_dump_hlo_pass_re": ".*",
    "xla_dump_hlo_as_text": True,
    "xla_dump_large_constants": True,
}
# `module_0012.jit_step.0020.collective-optimizations.after_algsimp.before_dce.txt`
_NAME = re.compile(r"module_(\d+)\..*\.(\d{4})\.([^.]+)\.after_(.+?)(?:\.before_.*)?\.txt")
_PARTITIONED = ("spmd-partitioning", "tpu-spmd-partitioning")
_NO_PASS = "pipeline-start"
# What computes nothing, or is named by what it contains.
_SILENT = NAMES | BARRIERS | CONTROL | FUSIONS | KINDS["makes"] | {"copy", "broadcast"}

IsRight = Callable[[str], bool | None]
"""Whether a text computes what it should; None if it cannot be computed."""


@dataclass(frozen=True)
class AfterPass:
    """The program as it was after a pass.

    Attributes:
        name: the pass; `pipeline-start` before the first of several.
        text: the program.
        pipeline: the name of those several.
    """

    name: str
    text: str
    pipeline: str = ""


@dataclass(frozen=True)
class Blamed:
    """Where a program became wrong.

    Attributes:
        name: the pass after which it is wrong; empty if it is wrong as soon as it is partitioned.
        candidates: the passes of which one is it, in order, if texts between them cannot be computed.
        before: the program before it, or before the first candidate.
        after: the program after it.
    """

    name: str
    candidates: tuple[str, ...]
    before: str
    after: str

    @property
    def in_words(self) -> str:
        """The pass, in a sentence."""
        if self.name:
            return f"XLA's pass {self.name}: the program is right before it and wrong after it"
        if self.candidates:
            return f"the program becomes wrong in one of XLA's passes {', '.join(self.candidates)}"
        return "the program is wrong as soon as XLA has partitioned it (spmd-partitioning, or a pass before)"


def after_each_pass(lowered: jax.stages.Lowered, options: Mapping[str, Any], device: jax.Device) -> list[AfterPass]:
    """Compile a program once more and return it as it was after each pass that changed it, once it was partitioned.

    Args:
        lowered: the program.
        options: the options that it was compiled with.
        device: one of its devices.

    Returns:
        Nothing where the compiler keeps no texts.
    """
    with tempfile.TemporaryDirectory(prefix="outlay-passes-") as folder:
        with without_compilation_cache(device):
            lowered.compile(compiler_options={**options, **_KEEPS, "xla_dump_to": folder})
        return in_order(folder)


def in_order(folder: str) -> list[AfterPass]:
    """Return the texts that a compiler has kept in a folder, from partitioning on."""
    of_modules: dict[str, list[tuple[int, str, str, Path]]] = {}
    for path in Path(folder).iterdir():
        if match := _NAME.fullmatch(path.name):
            of_modules.setdefault(match[1], []).append((int(match[2]), match[4], match[3], path))
    # Fusions are compiled alone as well, to be timed: the program is the module that was partitioned.
    for texts in of_modules.values():
        texts.sort(key=lambda one: one[0])
        first = next((at for at, one in enumerate(texts) if one[1] in _PARTITIONED), None)
        if first is not None:
            return [
                AfterPass(name, path.read_text(encoding="utf-8", errors="replace"), pipeline)
                for _, name, pipeline, path in texts[first:]
            ]
    return []


def first_wrong(texts: Sequence[AfterPass], is_right: IsRight, seconds: float) -> Blamed | None:
    """Return the pass after which a program is wrong, by halving; None if there is none or the time is over.

    Args:
        texts: the program after each pass, of which the last is wrong.
        is_right: whether a text is right.
        seconds: how long to look.

    Examples:
        >>> texts = [AfterPass(name, name) for name in ("spmd-partitioning", "algsimp", "code-motion", "dce")]
        >>> first_wrong(texts, lambda text: text in ("spmd-partitioning", "algsimp"), 60).name
        'code-motion'
    """
    end = time.monotonic() + seconds
    if not texts:
        return None
    if is_right(texts[-1].text) is not False:  # compiled again, it is another program
        return None
    if is_right(texts[0].text) is False:
        return Blamed("", (), texts[0].text, texts[0].text)
    last_right, wrong = 0, len(texts) - 1
    while wrong - last_right > 1 and time.monotonic() < end:
        middle, answer = _nearest_answer(texts, is_right, last_right, wrong)
        if answer is None:
            break
        last_right, wrong = (middle, wrong) if answer else (last_right, middle)
    names = [one.name for one in texts[last_right + 1 : wrong + 1]]
    candidates = tuple(dict.fromkeys(name for name in names if name != _NO_PASS))
    if time.monotonic() >= end and len(candidates) > 1:
        return None
    name = candidates[0] if len(candidates) == 1 else ""
    if not candidates:  # compilers for TPUs keep the text at the start of most pipelines, not after each pass
        candidates = (f"between the starts of {texts[last_right].pipeline} and {texts[wrong].pipeline}",)
    return Blamed(name, candidates, texts[last_right].text, texts[wrong].text)


def changed(blamed: Blamed, axes: Axes) -> list[str]:
    """Return which exchanges a program has before a pass alone and after it alone, with their lines.

    If it has the same exchanges before and after, the other operations that differ are returned.

    Args:
        blamed: the pass.
        axes: name and size of each axis of the program's mesh, the slowest first.
    """
    modules = [parse_hlo(text) for text in (blamed.before, blamed.after)]
    before, after = (
        Counter(_collective_in_words(one) for one in structure_of(module, axes).order) for module in modules
    )
    if before == after:
        before, after = (Counter(_operations(module)) for module in modules)
    return [*(f"before it {one}" for one in before - after), *(f"after it {one}" for one in after - before)]


def _operations(module: HloModule) -> Iterator[str]:
    """Yield what the operations of a program compute, with their lines."""
    for computation, one in module.instructions():
        if one.opcode not in _SILENT and one.shapes:
            source = origin_of(module, computation.name, one).source
            dims = ",".join(map(str, one.shapes[0].dims))
            yield f"{one.opcode} {one.shapes[0].dtype}[{dims}]" + (f" ({source})" if source else "")


def _collective_in_words(facts: Collective) -> str:
    where = "in a loop" if facts.in_loop else "outside of loops"
    return f"{facts.kind} over {facts.axes} {where}" + (f" ({facts.line})" if facts.line else "")


def _nearest_answer(
    texts: Sequence[AfterPass], is_right: IsRight, last_right: int, wrong: int
) -> tuple[int, bool | None]:
    """Ask about the text in the middle, or about the nearest one that can be computed."""
    middle = (last_right + wrong) // 2
    for at in sorted(range(last_right + 1, wrong), key=lambda at: abs(at - middle)):
        answer = is_right(texts[at].text)
        if answer is not None:
            return at, answer
    return middle, None
