"""A candidate: one layout on one mesh with one set of the recipe's options, and of the compiler's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WITH_HOST = "+host"
"""Ends the name of a layout that keeps the optimizer's state in the memory of the host: `fsdp+host`."""


@dataclass(frozen=True)
class Candidate:
    """One way to run a recipe.

    Attributes:
        layout: the name of one of the recipe's layouts, or a TOML file.
        mesh: the mesh as text.
        options: the recipe's options that were varied, with their values.
        xla: options of the compiler, where they are others than those that were asked for.

    >>> print(Candidate("fsdp", "data=8", (("remat", True), ("accumulate", 2))))
    fsdp data=8 --remat --accumulate 2
    """

    layout: str
    mesh: str
    options: tuple[tuple[str, Any], ...] = ()
    xla: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The recipe's options as words of a command line."""
        return words_of(dict(self.options))

    @property
    def all_words(self) -> tuple[str, ...]:
        """The recipe's options, and the compiler's, as words of a command line."""
        return self.words if self.xla is None else (*self.words, "--xla", self.xla)

    @property
    def base_layout(self) -> str:
        """The layout without what it keeps on the host."""
        return self.layout.removesuffix(WITH_HOST)

    def __str__(self) -> str:
        return " ".join([self.layout, self.mesh, *self.all_words])


def words_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of a recipe as words of a command line; a list is several values to try.

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
    """Every layout on each of its meshes with every set of options.

    Args:
        meshes: meshes as text, by layout.
        options: the sets of options.
    """
    for layout, texts in meshes.items():
        for mesh in texts:
            for chosen in options:
                yield Candidate(layout, mesh, chosen)
