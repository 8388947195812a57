"""Count the FLOPs of convolutions and of fused attention by their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def convolution_flops(
    dims: Iterable[Sequence[int]], windows: Iterable[Sequence[int]], num_outputs: int, num_features: int
) -> float:
    """Return the FLOPs of a convolution; padding and the holes of dilation are skipped, as XLA counts them.

    Args:
        dims: for each dim along which the kernel moves, its size in the image, in the kernel and in the result.
        windows: for each of these dims the kernel's stride, the padding before the image (negative crops it), the
            distance between entries of the image (more than 1 in a transposed convolution), and that of the kernel.
        num_outputs: samples times features of the result.
        num_features: the number of features of the image.

    >>> convolution_flops([(4, 3, 2)], [(1, 0, 1, 1)], 1, 1), convolution_flops([(4, 3, 4)], [(1, 1, 1, 1)], 1, 1)
    (12.0, 20.0)
    """
    num_products = 1
    for (image, kernel, out), (stride, pad_low, dilation, kernel_dilation) in zip(dims, windows, strict=True):
        met = stride * np.arange(out)[:, None] + kernel_dilation * np.arange(kernel) - pad_low
        inside = (met >= 0) & (met <= (image - 1) * dilation)
        num_products *= int((inside & (met % dilation == 0)).sum())
    return 2.0 * num_outputs * num_features * num_products


def attention_flops(
    num_heads: int, num_queries: int, num_keys: int, dim: int, *, backward: bool, causal: bool, window: int | None
) -> float:
    """Return the FLOPs of fused attention, without what its mask hides: two products forward, five backward.

    Forward these are the scores and the mixed values; backward the scores again and four gradients.

    Args:
        num_heads: the number of heads of all samples together.
        num_queries: the number of queries of each head.
        num_keys: the number of keys of each head.
        dim: the dim of a query.
        backward: whether it is the gradient.
        causal: whether a query sees only the keys up to itself.
        window: how many of these it sees, if not all.

    >>> [attention_flops(1, 4, 4, 1, backward=False, causal=c, window=w) / 4 for c, w in [(0, None), (1, None), (1, 2)]]
    [16.0, 10.0, 7.0]
    """
    num_visible = num_queries * num_keys
    if causal or window is not None:
        num_visible = sum(min(query + 1, num_keys, window or num_keys) for query in range(num_queries))
    return 2.0 * (5 if backward else 2) * num_heads * num_visible * dim
