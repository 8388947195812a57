"""How often a convolution multiplies: padding and the holes of dilation are skipped, as XLA counts them."""

from __future__ import annotations

import numpy as np


def valid_products(
    image: int,
    kernel: int,
    out: int,
    *,
    stride: int = 1,
    pad_low: int = 0,
    dilation: int = 1,
    kernel_dilation: int = 1,
) -> int:
    """The pairs of output and kernel position, along one dim, that meet an entry of the image.

    Args:
        image: size of the dim in the image.
        kernel: size in the kernel.
        out: size in the result.
        stride: step of the kernel from one output to the next.
        pad_low: padding before the image; negative crops it.
        dilation: distance of the image's entries, more than 1 in a transposed convolution.
        kernel_dilation: distance of the kernel's entries.

    >>> valid_products(4, 3, 2), valid_products(4, 3, 4, pad_low=1)
    (6, 10)
    """
    met = stride * np.arange(out)[:, None] + kernel_dilation * np.arange(kernel) - pad_low
    inside = (met >= 0) & (met <= (image - 1) * dilation)
    return int((inside & (met % dilation == 0)).sum())
