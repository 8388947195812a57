"""Where an explained program stands among the candidates that `outlay choose` compiled: memory against time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax

from outlay.core.error_types import ExplainError
from outlay.core.input_file import read_text
from outlay.core.one_line import OneLine
from outlay.core.option import words_of_given
from outlay.core.quantities import counted, format_bytes, format_seconds
from outlay.render.page import Block, Cell, Column, Row, Section, Segment, Table, colour_of
from outlay.render.pictures import Point, Scatter

_NEEDED = ("recipe", "words", "target", "considered")
_MOST_ROWS = 8


@dataclass(frozen=True)
class FrontCandidate(OneLine):
    """A candidate that `outlay choose` compiled.

    Attributes:
        name: its layout, mesh and options.
        layout: its layout.
        seconds: of a step, or of an example where batches differ.
        peak_bytes: the memory of a device at its peak.
        verdict: what became of it.
        is_on_front: whether no other candidate that fits beats it in both.
    """

    name: str
    layout: str
    seconds: float
    peak_bytes: int
    verdict: str
    is_on_front: bool


@dataclass(frozen=True)
class Front(OneLine):
    """The candidates of a choice, and the program that is compared with them.

    Attributes:
        candidates: those that were compiled, by rank.
        capacity: the memory of a device.
        unit: what times are of: `a step`, or `an example` where batches differ.
        seconds: that time of the explained program.
        peak_bytes: its memory.
    """

    candidates: tuple[FrontCandidate, ...]
    capacity: int
    unit: str
    seconds: float
    peak_bytes: int

    @property
    def better(self) -> tuple[FrontCandidate, ...]:
        """The candidates that fit and need less of both time and memory."""
        return tuple(
            each
            for each in self.candidates
            if each.seconds < self.seconds and each.peak_bytes < self.peak_bytes and each.verdict != "does not fit"
        )

    @property
    def in_words(self) -> str:
        """Where the program stands, in a sentence."""
        here = f"{format_seconds(self.seconds)} {self.unit} in {format_bytes(self.peak_bytes)}"
        among = f"of {counted(len(self.candidates), 'candidate')} of outlay choose"
        if not self.better:
            return f"you are on the front, {here}: {among} none needs less of both memory and time"
        best = min(self.better, key=lambda each: each.seconds)
        others = f"{format_seconds(best.seconds)} in {format_bytes(best.peak_bytes)}"
        need = "needs" if len(self.better) == 1 else "need"
        return f"you are at {here}: {among} {len(self.better)} {need} less of both, such as {best.name}: {others}"


def read_choice(path: Path) -> Mapping[str, Any]:
    """Read what `outlay choose --json` wrote.

    Raises:
        ExplainError: the file cannot be read, or is no such choice.
    """
    fix = f"outlay choose RECIPE --target T --json > {path.name}"
    try:
        choice = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ExplainError(f"{path} cannot be read as a choice: {error}\n  fix: {fix}") from error
    lacking = [key for key in _NEEDED if not isinstance(choice, dict) or key not in choice]
    if lacking:
        raise ExplainError(f"{path} is not a choice of outlay choose: it lacks {', '.join(lacking)}\n  fix: {fix}")
    return choice


def check_choice(choice: Mapping[str, Any], recipe: str, words: Sequence[str], target: str, path: Path) -> None:
    """Raise an error if a choice is about something else than a program.

    Args:
        choice: what `read_choice` returned.
        recipe: the recipe of the program.
        words: its options, as on the command line.
        target: the hardware.
        path: where the choice is from.

    Raises:
        ExplainError: it is; the message says what differs.
    """
    own, asked = _options(words), _options(choice["words"])
    pairs = [("recipe", choice["recipe"], recipe), ("--target", choice["target"], target)]
    # Of several values that were tried, one is explained; what was varied without words can be anything.
    pairs += [(name, value, own.get(name, "nothing")) for name, value in asked.items()]
    differing = [
        f"{name} is {there} there, and {here} here" for name, there, here in pairs if here not in there.split(",")
    ]
    if differing:
        again = " ".join([recipe, *words, "--target", target])
        raise ExplainError(
            f"{path} is about something else: {'; '.join(differing)}\n  fix: outlay choose {again} --json"
        )


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return options by name; a flag has the value `yes`."""
    options: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            options[name] = value if equals else "yes"
        elif name:
            options[name] = word
    return options


def front_of(choice: Mapping[str, Any], seconds: float, peak_bytes: int, batch: Any) -> Front | None:
    """Place a program among the candidates of a choice; None if none of them was compiled.

    Args:
        choice: what `read_choice` returned.
        seconds: the estimated time of a step of the program.
        peak_bytes: its memory.
        batch: its batch, or the shapes of that.
    """
    first = {leaf.shape[0] if leaf.shape else 0 for leaf in jax.tree.leaves(batch)}
    num_samples = first.pop() if len(first) == 1 else 0
    compiled = [each for each in choice["considered"] if each["price"] and each["price"]["parts"]]
    if not compiled:
        return None
    sizes = [(each["expected"] or {}).get("num_samples", 1) for each in compiled]
    is_per_sample = num_samples > 0 and {*sizes} != {num_samples}
    fitting = [each["price"] for each in compiled if each["price"]["fits"]]

    def is_on_front(price: Mapping[str, Any]) -> bool:
        lighter = (other for other in fitting if other["peak_bytes"] <= price["peak_bytes"] and other is not price)
        return price["fits"] and all(other["seconds"] > price["seconds"] for other in lighter)

    candidates = tuple(
        FrontCandidate(
            name=_name(each),
            layout=each["layout"],
            seconds=each["price"]["seconds"] / (size if is_per_sample else 1),
            peak_bytes=each["price"]["peak_bytes"],
            verdict=each["verdict"],
            is_on_front=is_on_front(each["price"]),
        )
        for each, size in zip(compiled, sizes, strict=True)
    )
    capacity = max(each["price"]["capacity"] for each in compiled)
    unit, own = ("an example", seconds / num_samples) if is_per_sample else ("a step", seconds)
    return Front(candidates, capacity, unit, own, peak_bytes)


def _name(each: Mapping[str, Any]) -> str:
    """Return the name of a candidate: its layout, its mesh, and what was varied."""
    more = ["--compiler-options", each["compiler_options"]] if each["compiler_options"] else []
    return " ".join([each["layout"], each["mesh"], *map(str, words_of_given(each["options"])), *more])


def front_blocks(front: Front) -> Iterator[Block]:
    """Draw the candidates, their front, and where the program stands."""
    colours = {layout: colour_of(number) for number, layout in enumerate(dict.fromkeys(_layouts(front)))}
    points = [
        Point(
            each.peak_bytes,
            each.seconds,
            number,
            colours[each.layout],
            _style(each),
            f"{each.name}: {format_seconds(each.seconds)} {front.unit}, {format_bytes(each.peak_bytes)}",
        )
        for number, each in reversed(list(enumerate(front.candidates, 1)))
    ]
    here = Point(front.peak_bytes, front.seconds, 0, "work", "here", front.in_words)
    corners = sorted((each.peak_bytes, each.seconds) for each in front.candidates if each.is_on_front)
    scatter = Scatter(
        [*points, here],
        front=corners or [(front.peak_bytes, front.seconds)],
        x_title="memory of a device at its peak",
        y_title=front.unit,
        format_x=format_bytes,
        format_y=format_seconds,
        limit=front.capacity,
        limit_title=f"{format_bytes(front.capacity)} a device",
        legend=[Segment(layout, 0, colour) for layout, colour in colours.items()],
    )
    rows = [_row(number, each, colours) for number, each in enumerate(front.candidates, 1)]
    columns = [Column("", "number"), Column("candidate", "code"), Column(front.unit, "number", is_key=True)]
    columns += [Column("memory", "number"), Column("")]
    table = Table(columns, rows, limit=_MOST_ROWS)
    yield Section("you are here", [scatter, table], "among what outlay choose compiled", medium="html")


def _layouts(front: Front) -> Iterator[str]:
    yield from (each.layout for each in front.candidates)


def _style(each: FrontCandidate) -> Literal["", "chosen", "beyond"]:
    return "chosen" if each.verdict == "chosen" else "beyond" if each.verdict == "does not fit" else ""


def _row(number: int, each: FrontCandidate, colours: Mapping[str, str]) -> Row:
    verdict = f"{each.verdict}, on the front" if each.is_on_front and each.verdict != "chosen" else each.verdict
    name, time = Cell(each.name, colour=colours[each.layout]), format_seconds(each.seconds)
    cells = [str(number), name, time, format_bytes(each.peak_bytes), verdict]
    return Row(cells, "strong" if each.verdict == "chosen" else "")
