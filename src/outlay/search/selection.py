"""What `outlay.choose` answers: every candidate with its verdict, as facts that print themselves."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Group

from outlay.core.table import to_text
from outlay.search.candidate import Candidate
from outlay.search.candidate_price import Price
from outlay.search.expect import Expectation
from outlay.search.selection_page import page
from outlay.search.selection_text import lines

Verdict = Literal["chosen", "slower", "does not fit", "timed out", "failed", "not compiled", "ruled out"]


@dataclass(frozen=True)
class Considered:
    """One candidate and what became of it.

    Attributes:
        candidate: the candidate.
        verdict: `chosen`; `slower` or `does not fit`, as compiled; `timed out` or `failed` in compiling;
            `not compiled`, since the arithmetic ranks it below those that were; `ruled out` by the arithmetic.
        why: why it lost, in words.
        price: what the compiler made of it; None unless it was compiled.
        expected: what the arithmetic expected; None where it ruled it out.
        was_kept: whether the price was kept from an earlier search.
    """

    candidate: Candidate
    verdict: Verdict
    why: str
    price: Price | None = None
    expected: Expectation | None = None
    was_kept: bool = False

    @property
    def num_samples(self) -> int:
        """The examples of a step."""
        return self.expected.num_samples if self.expected else 1

    @property
    def price_per_sample(self) -> Price | None:
        """Its price for an example rather than a step."""
        return self.price.times(1 / self.num_samples) if self.price else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        expected = self.expected
        return {
            "layout": self.candidate.layout,
            "mesh": self.candidate.mesh,
            "options": dict(self.candidate.options),
            "xla": self.candidate.xla,
            "verdict": self.verdict,
            "why": self.why,
            "price": self.price.to_dict() if self.price else None,
            "expected": asdict(expected) if expected else None,
            "was_kept": self.was_kept,
        }


@dataclass(frozen=True)
class Selection:
    """The layout chosen for a target, and why not the others; made by `outlay.choose`.

    Attributes:
        recipe: the recipe as the user named it.
        words: the options that the user gave it.
        target: the target, as text.
        considered: every candidate: the chosen one, then those that were compiled, by rank, then the others.
        toml: the chosen layout and its mesh as the text of a layout file; None for a layout that no file can say.
        seconds: how long it took to choose.
        xla: options of the compiler, where a candidate has no others.
    """

    recipe: str
    words: tuple[str, ...]
    target: str
    considered: tuple[Considered, ...]
    toml: str | None
    seconds: float
    xla: str = "preset"

    def __iter__(self) -> Iterator[Considered]:
        return iter(self.considered)

    @property
    def chosen(self) -> Considered:
        """The candidate to take."""
        return self.considered[0]

    @property
    def compiled(self) -> tuple[Considered, ...]:
        """The candidates that the compiler said something of, by rank."""
        return tuple(each for each in self if each.price is not None)

    @property
    def is_per_sample(self) -> bool:
        """Whether batches differ, so that the times of an example are compared in place of those of a step."""
        return len({each.num_samples for each in self.compiled}) > 1

    @property
    def pareto(self) -> tuple[Considered, ...]:
        """The candidates that fit and that no other beats in both time and memory, from least memory to least time.

        The time is that of an example, since batches may differ.
        """
        prices = ((each, each.price_per_sample) for each in self)
        fitting = [(each, price) for each, price in prices if price is not None and price.fits]
        front: list[Considered] = []
        fastest = math.inf
        for each, price in sorted(fitting, key=lambda pair: (pair[1].peak_bytes, pair[1].seconds)):
            if price.seconds < fastest:
                fastest = price.seconds
                front.append(each)
        return tuple(front)

    def commands(self, file: str | None = None) -> tuple[str, ...]:
        """Command lines to go on with: explain the chosen candidate on the target, and run it there.

        Args:
            file: where the layout was written; without it the layout is named, with its mesh.
        """
        chosen = self.chosen.candidate
        xla = ("--xla", self.xla) if chosen.xla is None and self.xla != "preset" else ()
        recipe = [self.recipe, *self.words, *chosen.all_words, *xla]
        layout = ["--layout", file] if file else ["--layout", chosen.layout, "--mesh", chosen.mesh]
        return (
            shlex.join(["outlay", "explain", *recipe, *layout, "--target", self.target]),
            shlex.join(["outlay", "run", *recipe, *layout]),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "recipe": self.recipe,
            "words": list(self.words),
            "target": self.target,
            "chosen": self.chosen.to_dict(),
            "considered": [each.to_dict() for each in self],
            "pareto": [str(each.candidate) for each in self.pareto],
            "toml": self.toml,
            "commands": list(self.commands()),
            "seconds": self.seconds,
        }

    def to_html(self) -> str:
        """As a page that needs nothing else: memory against time, every candidate and why it lost."""
        return page(self)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __str__(self) -> str:
        return to_text(self)

    def __rich__(self) -> Group:
        return lines(self)
