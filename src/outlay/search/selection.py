"""The answer of `outlay.choose`: every candidate with its verdict, as facts that print themselves."""

from __future__ import annotations

import functools
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from outlay.analysis.cost.estimate import segments_of_time
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted, format_bytes, format_seconds
from outlay.render.page import (
    Block,
    Cell,
    Chip,
    Code,
    Column,
    Deferred,
    Details,
    Line,
    Notes,
    Page,
    Section,
    Segment,
    Stat,
    Stats,
    Table,
    colour_of,
)
from outlay.render.pictures import Legend, Point, Scatter
from outlay.render.report import Report, fields_as_json
from outlay.report.explain.explanation import Explanation, asked_and_throughput, sections_of
from outlay.search.analytic_cost import Expectation
from outlay.search.candidate import Candidate
from outlay.search.compiled_price import Price

_NUM_REASONS = 12
Verdict = Literal["chosen", "slower", "does not fit", "timed out", "failed", "not compiled", "ruled out"]


@dataclass(frozen=True)
class Considered(OneLine):
    """One candidate and its verdict.

    Attributes:
        candidate: the candidate.
        verdict: `chosen`; `slower` or `does not fit`, after compiling; `timed out` or `failed` while compiling; `not
            compiled`, because the arithmetic ranks it below the others; `ruled out` by the arithmetic.
        why: why it lost, in words.
        price: the price of the compiled program; None if it was not compiled.
        expected: the estimate by arithmetic; None if that ruled it out.
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
        """Its price per example instead of per step."""
        return self.price.times(1 / self.num_samples) if self.price else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            **fields_as_json(self.candidate),
            "options": dict(self.candidate.options),
            **fields_as_json(self, "candidate"),
        }


@dataclass(frozen=True)
class Selection(Report):
    """The layout chosen for a target, and why not the others; returned by `outlay.choose`.

    Attributes:
        recipe: the recipe as the user named it.
        words: the options that the user gave it.
        target: the target, as text.
        considered: every candidate: the chosen one, then those that were compiled, by rank, then the others.
        toml: the chosen layout and its mesh as the text of a layout file; None for a layout that a file cannot express.
        seconds: how long the search took.
        compiler_options: those of every candidate without its own.
        explained: what the chosen one is, what it was chosen from and what comes next, as a paragraph.
        find_explanation: explains the chosen one, for the page; None where that needs other devices than are here.
    """

    recipe: str
    words: tuple[str, ...]
    target: str
    considered: tuple[Considered, ...]
    toml: str | None
    seconds: float
    compiler_options: str = "preset"
    explained: str = ""
    find_explanation: Callable[[], Explanation] | None = field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[Considered]:
        return iter(self.considered)

    @property
    def chosen(self) -> Considered:
        """The candidate to take."""
        return self.considered[0]

    @property
    def compiled(self) -> tuple[Considered, ...]:
        """The candidates that were compiled, by rank."""
        return tuple(each for each in self if each.price is not None)

    @property
    def is_per_sample(self) -> bool:
        """Whether batches differ, so that times per example are compared instead of times per step."""
        return len({each.num_samples for each in self.compiled}) > 1

    @property
    def pareto(self) -> tuple[Considered, ...]:
        """The candidates that fit and that no other beats in both time and memory, from least memory to least time.

        Times are per example, since batches may differ.
        """
        prices = ((each, each.price_per_sample) for each in self)
        fitting = [(each, price) for each, price in prices if price is not None and price.fits]
        front: list[Considered] = []
        fastest = math.inf
        # By memory, so that each is on the front that is faster than all that need less.
        for each, price in sorted(fitting, key=lambda pair: (pair[1].peak_bytes, pair[1].seconds)):
            if price.seconds < fastest:
                fastest = price.seconds
                front.append(each)
        return tuple(front)

    def commands(self, file: str | None = None) -> tuple[str, ...]:
        """Return command lines to continue with: explain the chosen candidate on the target, and run it there.

        Args:
            file: where the layout was written; without it the commands name the layout and its mesh.
        """
        chosen = self.chosen.candidate
        # The preset needs no words: commands use it by themselves.
        is_given = chosen.compiler_options is None and self.compiler_options != "preset"
        compiler_words = ("--compiler-options", self.compiler_options) if is_given else ()
        recipe = [self.recipe, *self.words, *chosen.all_words, *compiler_words]
        environment = self.chosen.price.environment if self.chosen.price else ()
        layout = ["--layout", file] if file else ["--layout", chosen.layout, "--mesh", chosen.mesh]
        return (
            shlex.join(["outlay", "explain", *recipe, *layout, "--target", self.target]),
            shlex.join([*environment, "outlay", "run", *recipe, *layout, *self._devices()]),
        )

    def _devices(self) -> list[str]:
        """Return the option for the devices that the target is simulated with; other hardware has its own."""
        return ["--devices", self.target.removeprefix("cpu:")] if self.target.startswith("cpu:") else []

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            **fields_as_json(self, "find_explanation"),
            "chosen": self.chosen.to_dict(),
            "pareto": [str(each.candidate) for each in self.pareto],
            "commands": list(self.commands()),
        }

    _text_width = 160

    def _page(self) -> Page:
        return self.laid_out()

    def laid_out(self, limit: int | None = None) -> Page:
        """Lay it out.

        Args:
            limit: of how many candidates the text tells, and of how many reasons; None for as many as are worth it.
        """
        price = self.chosen.price
        assert price is not None
        answer, notes = f"{self.chosen.candidate}", list(self._notes())
        memory = f"{format_bytes(price.peak_bytes)} of {format_bytes(price.capacity)} a device"
        return Page(
            title=f"{' '.join([self.recipe, *self.words])} on {self.target}: {answer}",
            headline=f"{self.target}: {answer}, about {price.range_in_words} a step, {memory}",
            headline_style="good",
            chips=[Chip("compiled for the target, nothing was run")],
            blocks=[
                *([Line(self.explained)] if self.explained else []),
                Deferred(functools.partial(self._from_explanation, asked_and_throughput), medium="html"),
                self._stats(price),
                Notes(notes, is_warning=True, medium="html"),
                Section("continue with the chosen one", [Code("\n".join(self.commands()))], medium="html"),
                *self._plot(),
                Section("what was compiled", [self._table(limit), Legend(segments_of_time(price.parts))]),
                Notes(self._from_earlier(), medium="html"),
                *self._left_out(_NUM_REASONS if limit is None else limit),
                Line("", medium="text"),
                Notes([*notes, *self._from_earlier()], is_warning=True, medium="text"),
                *([Section("its layout", [Code(self.toml)], medium="html")] if self.toml else []),
                Deferred(functools.partial(self._from_explanation, sections_of), medium="html"),
            ],
        )

    def _from_explanation(self, blocks: Callable[[Explanation], Iterator[Block]]) -> Iterator[Block]:
        return blocks(self.explanation) if self.explanation else iter(())

    @functools.cached_property
    def explanation(self) -> Explanation | None:
        """The chosen one, explained; its program is in the cache, since it was compiled for this choice."""
        return self.find_explanation() if self.find_explanation else None

    def _stats(self, price: Price) -> Stats:
        return Stats(
            [
                Stat("A step", format_seconds(price.seconds), price.range_in_words),
                Stat("Memory", format_bytes(price.peak_bytes), f"of {format_bytes(price.capacity)} a device"),
                Stat("Compiled", str(len(self.compiled)), f"of {counted(len(self.considered), 'candidate')}"),
                Stat("On the front", str(len(self.pareto)), "no other needs less of both"),
            ],
            "The chosen one",
        )

    def _notes(self) -> Iterator[str]:
        """Yield what limits the answer."""
        first = self.chosen.price_per_sample
        slower = (each.price_per_sample for each in self.compiled[1:] if each.verdict == "slower")
        near = [price for price in slower if first and price and price.seconds_low < first.seconds_high]
        if near:
            yield (
                f"the ranges of {counted(len(near), 'slower one')} overlap that of the first: an estimate ranks, a "
                "measurement decides"
            )
        price = self.chosen.price
        if price and price.mem_fraction is not None:
            yield (
                f"the chosen one needs {price.mem_fraction:.0%} of the memory, more than JAX takes by itself: its "
                f"command sets {price.environment[0]}"
            )
        if self.is_per_sample:
            yield "batches differ, so times of an example are compared"

    def _from_earlier(self) -> list[str]:
        """Say how many prices are of an earlier search, which is nothing to be warned of."""
        num = sum(each.was_kept for each in self)
        return [f"{num} of {len(self.compiled)} compiled programs were kept from an earlier search"] if num else []

    @property
    def _tried(self) -> list[Considered]:
        return [each for each in self if each.verdict not in ("not compiled", "ruled out")]

    def _colour(self, each: Considered) -> str:
        """Return the colour of a candidate; candidates of one layout share it."""
        layouts = list(dict.fromkeys(tried.candidate.base_layout for tried in self._tried))
        return colour_of(layouts.index(each.candidate.base_layout))

    def _plot(self) -> list[Block]:
        """Plot memory against time for every candidate that was compiled."""
        unit = "an example" if self.is_per_sample else "a step"
        tried = self._tried
        prices = [(each, price) for each in self.compiled if (price := self._compared(each)) and price.parts]
        if not prices:
            return []
        points = [
            Point(
                price.peak_bytes,
                price.seconds,
                tried.index(each) + 1,
                self._colour(each),
                "beyond" if each.verdict == "does not fit" else "chosen" if each is self.chosen else "",
                f"{each.candidate}: {format_seconds(price.seconds)} {unit}, {format_bytes(price.peak_bytes)}",
            )
            for each, price in reversed(prices)
        ]
        colours = {each.candidate.base_layout: self._colour(each) for each in tried}
        capacity = max(price.capacity for _, price in prices)
        scatter = Scatter(
            points,
            front=[(price.peak_bytes, price.seconds) for each in self.pareto if (price := self._compared(each))],
            x_title="memory of a device at its peak",
            y_title=unit,
            format_x=format_bytes,
            format_y=format_seconds,
            limit=capacity,
            limit_title=f"{format_bytes(capacity)} a device",
            legend=[Segment(layout, 0, colour) for layout, colour in colours.items()],
        )
        remark = "the line is the front: no other candidate beats those on it in both"
        return [Section("memory against time", [scatter], remark, medium="html")]

    def _compared(self, each: Considered) -> Price | None:
        """Return the price whose times are compared: per example if batches differ."""
        return each.price_per_sample if self.is_per_sample else each.price

    def _table(self, limit: int | None) -> Table:
        front, tried = self.pareto, self._tried

        def verdict(each: Considered) -> str:
            # The reason already says that it is slower.
            words = each.why if each.verdict == "slower" else f"{each.verdict}: {each.why}"
            return f"{words}, on the front" if each in front and each is not self.chosen else words

        options = (Column("options", "code"), lambda each: " ".join(each.candidate.all_words))
        slowest = max((price.seconds for each in tried if (price := self._compared(each))), default=0.0) or 1.0
        columns = [
            (Column("", "number", medium="html"), lambda each: str(tried.index(each) + 1)),
            (Column("layout", is_key=True), lambda each: Cell(each.candidate.layout, colour=self._colour(each))),
            (Column("mesh", "code"), lambda each: each.candidate.mesh),
            *([options] if any(each.candidate.all_words for each in tried) else []),
            (Column("a step", "number", is_key=True), lambda each: each.price.range_in_words if each.price else ""),
            *([(Column("an example", "number"), _seconds_of_example)] if self.is_per_sample else []),
            (
                Column("made of", medium="html"),
                lambda each: Cell("", segments=self._parts(each, slowest)),
            ),
            (Column("memory", "number"), lambda each: format_bytes(each.price.peak_bytes) if each.price else ""),
            (Column("", "words", is_key=True), verdict),
        ]
        return Table.of(tried, columns, style=lambda each: "strong" if each is self.chosen else "", limit=limit)

    def _parts(self, each: Considered, slowest: float) -> list[Segment]:
        """Return what the time of a candidate is made of; bars of all candidates have one scale."""
        price = self._compared(each)
        if price is None:
            return []
        return [replace(part, share=part.share * price.seconds / slowest) for part in segments_of_time(price.parts)]

    def _left_out(self, limit: int) -> list[Block]:
        """List candidates that were not compiled by their reasons, the most frequent first."""
        waiting = [each for each in self if each.verdict == "not compiled"]
        reasons = Counter(each.why for each in self if each.verdict == "ruled out").most_common()
        blocks: list[Block] = []
        if waiting:
            what = f"{counted(len(waiting), 'candidate')} that the arithmetic ranks below, not compiled"
            blocks.append(Details(what, [f"{each.candidate}: {each.why}" for each in waiting], limit=1, what="of them"))
        if reasons:
            what = f"{counted(sum(count for _, count in reasons), 'candidate')} that the arithmetic rules out"
            blocks.append(Details(what, [f"{count} x {why}" for why, count in reasons], limit, what="reasons"))
        return [Section("what was not compiled", blocks)] if blocks else []


def _seconds_of_example(each: Considered) -> str:
    price = each.price_per_sample
    return format_seconds(price.seconds) if price else ""
