"""Something that costs more than it must, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.analysis.hlo.hlo_module import SourceLine


@dataclass(frozen=True)
class Finding:
    """Something that costs, and what to do about it.

    Attributes:
        kind: a short fixed name, such as `resharding`, `whole-parameter-gather`, `out-of-memory`.
        text: what, where and how much, in words.
        fix: the edit to make.
        cost_bytes: bytes moved or held for it, on a device in a step, by all alike; findings are ranked by it.
        source: the user's line, where there is one.
        num_alike: how many of the program's instructions it was found of, in the same words.
    """

    kind: str
    text: str
    fix: str
    cost_bytes: int
    source: SourceLine | None = None
    num_alike: int = 1
