"""Sizes of a program on a smaller mesh that the axes divide as they divide the full ones."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from outlay.core.one_line import OneLine

TILE = 128
"""Kernels and tiles of all hardware take powers of two up to this one, and pad what is no multiple of them."""


@dataclass(frozen=True)
class SmallerMesh(OneLine):
    """A mesh, and a smaller one with the same axes; it makes the sizes of a program smaller.

    Attributes:
        full: the size of each axis.
        small: likewise, of the smaller mesh.
        samples: the axes that split the batch.
        platform: the kind of its devices, whose kernels may need sizes of their own.

    Example:
        >>> less = SmallerMesh({"data": 128, "model": 2}, {"data": 8, "model": 2}, ("data",))
        >>> less.size(28_672, at_least=800), less.size(50_257, at_least=256), less.batch(1024)
        (896, 257, 16)
    """

    full: Mapping[str, int]
    small: Mapping[str, int]
    samples: tuple[str, ...] = ()
    platform: str = "gpu"

    def size(
        self, full: int, *, at_least: int = 1, tile: int = TILE, multiple_of: int = 1, may_split: bool = False
    ) -> int:
        """Return the smallest size that axes divide, alone and together, as they divide the full one.

        So a layout splits the same dims. It also has the same powers of two, as far as the axes leave that open, so
        that the same kernels take it.

        Args:
            full: the size in the full program, which is returned if nothing smaller will do.
            at_least: return no smaller size.
            tile: the largest power of two that matters.
            multiple_of: return a multiple of this, unless it is the full size.
            may_split: axes may divide it that do not divide the full one, as no layout splits it.
        """
        first = -(-min(at_least, full) // multiple_of) * multiple_of
        repeats = math.lcm(tile, multiple_of, *(few for _, few in self._products))
        sizes = range(first, min(full + 1, first + repeats), multiple_of)
        powers = [tile >> shift for shift in range(tile.bit_length())]
        for is_divided in (self._is_divided_alike, self._is_divided_more)[may_split:]:
            divided = [size for size in sizes if is_divided(full, size)]
            for power in powers if divided else ():
                for size in divided:
                    if math.gcd(size, power) == math.gcd(full, power):
                        return size
        return full

    def batch(self, full: int, *, each: int = 2) -> int:
        """Return a batch in which each device has a few samples, or one, or none, as in the full one.

        Args:
            full: the samples of a batch or of a microbatch.
            each: the most samples of a device.
        """
        many, few = self._num_parts
        return self.size(full, at_least=few * max(min(each, full // many), 1), tile=2)

    def same_each(self, full: int) -> int:
        """Return a batch in which each device has as many samples as in the full one.

        Args:
            full: the samples of a batch.

        Example:
            >>> SmallerMesh({"data": 128}, {"data": 16}, ("data",)).same_each(256)
            32
        """
        many, few = self._num_parts
        return full * few // many if full % many == 0 else self.batch(full)

    @property
    def _num_parts(self) -> tuple[int, int]:
        """In how many parts a batch is split, on either mesh."""
        full, small = (math.prod(of[name] for name in self.samples) for of in (self.full, self.small))
        return full, small

    def _is_divided_alike(self, full: int, size: int) -> bool:
        return all((full % many == 0) == (size % few == 0) for many, few in self._products)

    def _is_divided_more(self, full: int, size: int) -> bool:
        return all(size % few == 0 for many, few in self._products if full % many == 0)

    @functools.cached_property
    def _products(self) -> list[tuple[int, int]]:
        """By how many devices axes split a dim, alone and together, on either mesh."""
        some = (names for num in range(1, len(self.full) + 1) for names in itertools.combinations(self.full, num))
        return [
            (math.prod(map(self.full.__getitem__, names)), math.prod(map(self.small.__getitem__, names)))
            for names in some
        ]
