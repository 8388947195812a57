"""How values are spread after convolutions, also in calls of cuDNN and as products on a TPU."""

from __future__ import annotations

import re

from outlay.analysis.hlo.execute.reducing import read_window
from outlay.analysis.verify.static.product_rules import after, configuration, product, with_workspace
from outlay.analysis.verify.static.spreads import Tree
from outlay.analysis.verify.static.visit import Rules, Visit


def _convolution(visit: Visit) -> Tree:
    labels = re.split(r"_|->", visit.instruction.attributes.get("dim_labels", ""))
    grouped = visit.number("feature_group_count", 1) > 1 or visit.number("batch_group_count", 1) > 1
    if len(labels) != 3:
        return visit.unknown
    image, kernel, out = labels
    left = {image.index("b"): out.index("b")}
    right = {} if grouped else {kernel.index("o"): out.index("f")}
    contracted = [] if grouped else [(image.index("f"), kernel.index("i"))]
    for number, label in enumerate(sorted(set(image) - {"b", "f"})):
        _add_window(visit, number, (image.index(label), kernel.index(label), out.index(label)), left, right, contracted)
    return product(visit, visit.array(0), visit.array(1), contracted, left, right)


def _add_window(
    visit: Visit,
    number: int,
    dims: tuple[int, int, int],
    left: dict[int, int],
    right: dict[int, int],
    contracted: list[tuple[int, int]],
) -> None:
    """Add a dim over which a window moves, if it only looks like one: a TPU's products have dims of batches as such.

    Args:
        visit: the convolution.
        number: which dim of the window.
        dims: which dim it is of the image, of the kernel and of the result.
        left: where dims of the image are in the result.
        right: where dims of the kernel are.
        contracted: dims of both that are summed over.
    """
    window = read_window(visit.instruction.attributes.get("window", ""))
    names = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
    size, stride, pad, *dilated, is_reversed = (window[name][number] for name in names)
    image_size, out_size = visit.dims_of(0)[dims[0]], visit.shape.dims[dims[2]]
    is_plain = stride == 1 and dilated == [1, 1]
    if size == 1 and pad == (0, 0) and is_plain:
        left[dims[0]] = dims[2]
    elif size == image_size and out_size == 1 and pad == (0, 0) and is_plain and not is_reversed:
        contracted.append((dims[0], dims[1]))
    elif image_size == 1 and size == out_size and pad == (size - 1, size - 1) and is_plain and is_reversed:
        right[dims[1]] = dims[2]
    elif size == image_size == out_size == dilated[0] and stride == size - 1 and pad == (0, 0) and dilated[1] == 1:
        left[dims[0]] = right[dims[1]] = dims[2]


def _cudnn_forward(visit: Visit) -> Tree:
    result = _convolution(visit)
    activation = configuration(visit, "cudnn_conv_backend_config").get("activation_mode", "kNone")
    if len(visit.arrays) > 2 or activation not in ("kNone", "0"):
        result = after(visit, result, range(2, len(visit.operands)), is_linear=False)
    return with_workspace(visit, result)


def _cudnn_backward(visit: Visit, *, of_image: bool) -> Tree:
    """Follow a gradient of the convolution whose labels the call has."""
    image, kernel, out = re.split(r"_|->", visit.instruction.attributes["dim_labels"])
    if of_image:  # of the result's gradient and the kernel
        places = {out.index("b"): image.index("b")}, {kernel.index("i"): image.index("f")}
        contracted = [(out.index("f"), kernel.index("o"))]
    else:  # of the image and the result's gradient
        places = {image.index("f"): kernel.index("i")}, {out.index("f"): kernel.index("o")}
        contracted = [(image.index("b"), out.index("b"))]
    if visit.number("feature_group_count", 1) > 1:
        places, contracted = ({}, {}), []
    return with_workspace(visit, product(visit, visit.array(0), visit.array(1), contracted, *places))


CONVOLUTION: Rules = {"convolution": _convolution}

LIBRARY_CONVOLUTION: Rules = {
    "__cudnn$convForward": _cudnn_forward,
    "__cudnn$convBiasActivationForward": _cudnn_forward,
    "__cudnn$convBackwardInput": lambda visit: _cudnn_backward(visit, of_image=True),
    "__cudnn$convBackwardFilter": lambda visit: _cudnn_backward(visit, of_image=False),
}
