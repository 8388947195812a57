"""A candidate of a search, one layout on one mesh with one set of options, and its price as compiled. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outlay.core.quantities import format_range

WITH_HOST = "+host"
"""The end of a layout's name that keeps the optimizer's state in host memory: `fsdp+host`."""


@dataclass(frozen=True)
class Candidate:
    """One way to run a recipe.

    Attributes:
        layout: the name of one of the recipe's layouts, or a TOML file.
        mesh: the mesh as text.
        options: the recipe's options that were varied, with their values.
        compiler_options: those of the compiler, if they differ from those that were asked for.

    >>> print(Candidate("fsdp", "data=8", (("remat", True), ("accumulate", 2))))
    fsdp data=8 --remat --accumulate 2
    """

    layout: str
    mesh: str
    options: tuple[tuple[str, Any], ...] = ()
    compiler_options: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The recipe's options as words of a command line."""
        return words_of(dict(self.options))

    @property
    def all_words(self) -> tuple[str, ...]:
        """The recipe's options, and the compiler's, as words of a command line."""
        more = () if self.compiler_options is None else ("--compiler-options", self.compiler_options)
        return (*self.words, *more)

    @property
    def base_layout(self) -> str:
        """The layout without its storage on the host."""
        return self.layout.removesuffix(WITH_HOST)

    def __str__(self) -> str:
        return " ".join([self.layout, self.mesh, *self.all_words])


def words_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Write options of a recipe as words of a command line; a list is several values to try.

    >>> words_of({"size": "3b", "remat": False, "num_heads": 8, "batch": [8, 16]})
    ('--size', '3b', '--no-remat', '--num-heads', '8', '--batch', '8,16')
    """
    words: list[str] = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list | tuple):
            words += [f"--{option}", ",".join(map(str, value))]
        else:
            words += [f"--{option}", f"{value}"]
    return tuple(words)


def candidates(
    meshes: Mapping[str, Sequence[str]], options: Sequence[tuple[tuple[str, Any], ...]]
) -> Iterator[Candidate]:
    """Return every layout on each of its meshes with every set of options.

    Args:
        meshes: meshes as text, by layout.
        options: the sets of options.
    """
    for layout, texts in meshes.items():
        for mesh in texts:
            for chosen in options:
                yield Candidate(layout, mesh, chosen)


@dataclass(frozen=True)
class Price:
    """One compiled candidate, for one device and one step.

    Attributes:
        seconds: the estimate, by which candidates are ranked; like all other times and traffic it is 0 if the compiler
            ran out of the target's memory and made no program.
        seconds_low: the least time that the estimate gives a step.
        seconds_high: the most.
        parts: what the time consists of, in seconds, as in `Estimate.parts`.
        peak_bytes: the most memory at one time, according to the compiler.
        capacity: the memory of a device.
        fits: whether the program runs in it.
        room: the peak that surely fits, beside what the runtime takes.
        flops: operations of the compiled program.
        bytes_by_axes: bytes sent over each mesh axis, or over several joined by "+".
        seconds_by_axes: the estimated time of that, if nothing overlaps.
        crossing: the axes among them that run between hosts.
        num_findings: the number of findings of `outlay.explain`.
        compile_seconds: how long the compiler took.
    """

    seconds: float
    seconds_low: float
    seconds_high: float
    parts: Mapping[str, float]
    peak_bytes: int
    capacity: int
    fits: bool
    room: int
    flops: float
    bytes_by_axes: Mapping[str, int]
    seconds_by_axes: Mapping[str, float]
    crossing: tuple[str, ...]
    num_findings: int
    compile_seconds: float

    @property
    def range_in_words(self) -> str:
        """The estimated range of a step's time; empty if the compiler made no program."""
        return format_range(self.seconds_low, self.seconds_high) if self.parts else ""

    def times(self, factor: float) -> Price:
        """Return the price of so many steps, to compare steps with different batches; the memory is that of one."""
        return replace(
            self,
            seconds=self.seconds * factor,
            seconds_low=self.seconds_low * factor,
            seconds_high=self.seconds_high * factor,
            parts={name: part * factor for name, part in self.parts.items()},
            flops=self.flops * factor,
            bytes_by_axes={axes: int(sent * factor) for axes, sent in self.bytes_by_axes.items()},
            seconds_by_axes={axes: spent * factor for axes, spent in self.seconds_by_axes.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**asdict(self), "crossing": list(self.crossing)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Price:
        """Read what `to_dict` returned."""
        return cls(**{**data, "crossing": tuple(data["crossing"])})
