"""Pencils: the sharding in which one dim is whole on every device, and mesh axes split the others."""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from outlay.arrays.misfits import refuse_misfits
from outlay.core.error_types import PlaceError


def pencil(shape: Sequence[int], mesh: Mesh, along: int) -> NamedSharding:
    """The sharding in which dim `along` is whole on every device; the mesh's axes split the other dims, in order.

    A transform along one dim after the other (an FFT, a tridiagonal solve) runs on pencils along that dim, and moves to
    the next ones by exchanging blocks between the devices of one mesh axis only: `outlay.reshard(x, pencil(...))`.

    Args:
        shape: global shape, of one dim more than the mesh has axes.
        mesh: the mesh.
        along: the dim that is whole.

    Raises:
        PlaceError: dims and axes do not match in number, there is no dim `along`, or dims do not divide; every dim
            that does not is listed.

    Example:
        >>> mesh = outlay.mesh(a=4, b=2)
        >>> [outlay.arrays.pencil((8, 8, 8), mesh, along).spec for along in (2, 1, 0)]
        [P('a', 'b', None), P('a', None, 'b'), P(None, 'a', 'b')]
    """
    rank, axes = len(shape), list(mesh.axis_names)
    if rank != len(axes) + 1:
        raise PlaceError(
            "a pencil leaves one dim whole and splits the others over one mesh axis each: "
            f"the array {tuple(shape)} has {rank} dims, the mesh {len(axes)} axes {axes}\n"
            f"  fix: a mesh of {rank - 1} axes"
        )
    if not -rank <= along < rank:
        raise PlaceError(f"along={along}, but the array {tuple(shape)} has dims 0 to {rank - 1}")
    axes.insert(along % rank, None)
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    refuse_misfits([("", tuple(shape))], sharding)
    return sharding
