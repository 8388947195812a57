"""Products in FP8 as placements: which parameters are multiplied in 8 bits, and how these are scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.core.public_names import called_as
from outlay.core.suggest import did_you_mean
from outlay.layout.placement import Choice, LeafView

Scaling = Literal["current", "delayed", "blockwise"]
Float8 = Literal["e4m3", "e5m2"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)
FLOAT8S: tuple[Float8, ...] = get_args(Float8)


@dataclass(frozen=True)
class Fp8:
    """Products of a parameter in FP8; see `fp8`.

    Attributes:
        scaling: what shares a scale: a whole tensor (`current`, or `delayed` by a step) or a block of it (`blockwise`).
        forward: the format of parameters and of what they are multiplied with.
        backward: the format of gradients that come in.
    """

    scaling: Scaling = "current"
    forward: Float8 = "e4m3"
    backward: Float8 = "e5m2"

    def __post_init__(self) -> None:
        problems = [*self._scaling_problems()]
        for name, given in (("forward", self.forward), ("backward", self.backward)):
            if given not in FLOAT8S:
                fix = did_you_mean(str(given), FLOAT8S)
                problems.append(Problem("unknown format", name, f"{name}={given!r} is no format of 8 bits", fix))
        if problems:
            raise LayoutError("this placement cannot be used:", problems)

    def _scaling_problems(self) -> Sequence[Problem]:
        if self.scaling in SCALINGS:
            return []
        fix = did_you_mean(str(self.scaling), SCALINGS)
        return [Problem("unknown scaling", "scaling", f"scaling={self.scaling!r}", fix)]

    @property
    def is_of_products(self) -> bool:
        """True: it says how leaves are multiplied and nothing of where they live; layouts know it by this."""
        return True

    def __call__(self, leaf: LeafView) -> Choice:
        """Claim nothing: other rules say where the leaf lives."""
        return Choice(P(), str(self))

    def __str__(self) -> str:
        return f"products in FP8 ({self.scaling} scaling, {self.forward} forward, {self.backward} backward)"


@called_as(
    "outlay.layout.fp8()",
    dtype='forward="e4m3", backward="e5m2"',
    recipe='scaling="current", "delayed" or "blockwise"',
    block_size='scaling="blockwise", of 128',
)
def fp8(scaling: Scaling = "current", forward: Float8 = "e4m3", backward: Float8 = "e5m2") -> Fp8:
    """Multiply matching parameters in FP8: both operands of their products are rounded to 8 bits, and scaled.

    For products (`jax.lax.dot_general`, and with it `@`, `jnp.einsum`, and layers of Flax and Equinox) one of whose
    operands is a matching leaf of the state, as it is, cast, transposed, reshaped or a layer of a stack. The model
    stays as it is, and the state in its own dtype; where leaves live is for other rules. What is differentiated is
    changed before JAX differentiates it: gradients that come in are rounded too, and what the backward pass needs of an
    operand is stored in 8 bits.

    * `current`: one scale for each operand of a product, from its largest entry now. Hardware with FP8 multiplies so.
    * `delayed`: the scale of an operand is the largest that it needed in the last 1,024 steps, and 1 before the first.
      So an array can be rounded where it is made; what has outgrown its scale is cut off, for one step. Each leaf of
      the state has three, which the layers of a stack share: of what it is multiplied with (where that is multiplied
      with several leaves, the first has it), of itself, and of gradients. For an `outlay.train_step`, whose state gets
      `scaling`, an array (leaves, 3, 1024).
    * `blockwise`: activations and gradients have a scale for 128 entries along the dim that is summed over, and
      parameters one for 128 x 128. XLA has no product with such scales for GPUs: there the rounded numbers are
      multiplied in the model's dtype, and nothing is saved.

    Scales are powers of two, so that scaling itself rounds nothing. Largest entries are those of all devices. On
    hardware without FP8 the compiler multiplies in 16 bits, and `outlay.explain` says so; simulated devices round as
    the hardware does. Sources: Micikevicius et al., FP8 formats (arXiv:2209.05433); NVIDIA's Transformer Engine,
    `DelayedScaling`; DeepSeek-V3, blocks (arXiv:2412.19437), section 3.3.

    Args:
        scaling: what shares a scale.
        forward: the format of both operands, `e4m3` (4 bits of exponent, 3 of mantissa) or `e5m2`.
        backward: the format of the gradients that come in.

    Raises:
        LayoutError: there is no such scaling or format.
        ProgramError: when a program is made with it: `delayed`, and the step is none of `outlay.train_step`.

    Example:
        >>> def step(state, batch):
        ...     grad = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(state["kernel"])
        ...     return {"kernel": state["kernel"] - 0.1 * grad}, None
        >>> layout = outlay.Layout([("kernel", outlay.layout.fp8())]) + outlay.data_parallel()
        >>> program = outlay.program(step, lambda key: {"kernel": jnp.ones((16, 4))}, np.ones((8, 16), np.float32),
        ...     layout=layout, mesh=outlay.mesh(data=8))
        >>> program.fp8
        '1 product of 1 leaf in FP8 (current scaling, e4m3 forward, e5m2 backward)'
    """
    return Fp8(scaling, forward, backward)
