"""Which attention compiles for which hardware, in which layout: one table, of what the compilers said.

    python benchmarks/attention_layouts.py [--brief] [TARGET ...]

`outlay.attention` with 1 to 16 heads on 8 devices, one fused kernel for query, key and value or one for each, grouped
heads, packed sequences and sliding windows; and the attention layers of NNX, Linen and Equinox, which call
`jax.nn.dot_product_attention`. Each is a train step of one layer, compiled for hardware that is absent. A row says
whether the fused kernel of the hardware is in the program, or in words why the program is refused; then the collectives
of a step and the bytes that a device sends. `--brief` takes one layout for each layer, in turn.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

import outlay

TARGETS = ("h100:1x8", "tpu-v5e:2x4", "tpu-v6e:2x4")
LAYOUTS = ("dp", "fsdp", "fsdp+tp")
SAMPLES, TOKENS, HEAD = 16, 256, 64
KERNEL = re.compile(r'custom_call_target="(?:__cudnn\$fmha\w*|tpu_custom_call)"')


@dataclass(frozen=True)
class Case:
    """One layer of attention.

    Attributes:
        library: who wrote the layer: outlay, nnx, linen or equinox.
        heads: heads of the query.
        key_heads: heads of key and value, which divide those of the query.
        kernels: fused, or separate for query, key and value.
        packed: whether samples are packed sequences, told apart by segment ids.
        window: how many tokens back a token sees; None for all.
    """

    library: str = "outlay"
    heads: int = 8
    key_heads: int = 8
    kernels: str = "separate"
    packed: bool = False
    window: int | None = None

    def __str__(self) -> str:
        more = ["segments"] * self.packed + [f"window {self.window}"] * (self.window is not None)
        return f"{self.library}, {self.kernels}, {self.heads}/{self.key_heads} heads{''.join(', ' + m for m in more)}"


def cases() -> Iterator[Case]:
    """Yield each layer that is tried."""
    for heads in (1, 2, 4, 8, 16):
        yield Case(heads=heads, key_heads=heads, kernels="fused")
        yield Case(heads=heads, key_heads=heads)
    for key_heads in (1, 2, 4):
        yield Case(key_heads=key_heads, kernels="fused" if key_heads == 2 else "separate")
    yield Case(kernels="fused", packed=True)
    yield Case(key_heads=2, packed=True)
    yield Case(kernels="fused", window=64)
    yield Case(heads=4, key_heads=2, packed=True, window=64)
    for library in ("nnx", "linen", "equinox"):
        yield Case(library=library)
        yield Case(library=library, heads=4, key_heads=4)


Layer = Callable[[Any, jax.Array, jax.Array], jax.Array]


def layer_of(case: Case) -> tuple[Callable[[jax.Array], Any], Layer]:
    """Return what makes the parameters of a layer, and the layer: parameters, x and segment ids in, x out."""
    return {"nnx": _of_nnx, "linen": _of_linen, "equinox": _of_equinox}.get(case.library, _of_outlay)(case)


def _of_outlay(case: Case) -> tuple[Callable[[jax.Array], Any], Layer]:
    sizes = [heads * HEAD for heads in (case.heads, case.key_heads, case.key_heads)]
    width = case.heads * HEAD
    names = {"qkv": sum(sizes)} if case.kernels == "fused" else dict(zip(("query", "key", "value"), sizes, strict=True))

    def make(key: jax.Array) -> Any:
        draw = jax.nn.initializers.lecun_normal()
        return {name: draw(key, (width, size)) for name, size in (names | {"out": width}).items()}

    def apply(params: Any, x: jax.Array, segments: jax.Array) -> jax.Array:
        if case.kernels == "fused":
            parts = jnp.split(x @ params["qkv"], np.cumsum(sizes)[:2], axis=-1)
        else:
            parts = [x @ params[name] for name in names]
        heads = [part.reshape(*x.shape[:2], -1, HEAD) for part in parts]
        ids = segments if case.packed else None
        mixed = outlay.attention(*heads, causal=True, window=case.window, segment_ids=ids)
        return mixed.reshape(x.shape) @ params["out"]

    return make, apply


def _of_nnx(case: Case) -> tuple[Callable[[jax.Array], Any], Layer]:
    def module(key: jax.Array) -> Any:
        return nnx.MultiHeadAttention(
            case.heads, case.heads * HEAD, decode=False, dtype=jnp.bfloat16, attention_fn=_attended, rngs=nnx.Rngs(key)
        )

    graph = nnx.graphdef(nnx.eval_shape(lambda: module(jax.random.key(0))))
    return lambda key: nnx.state(module(key), nnx.Param).to_pure_dict(), lambda params, x, segments: nnx.merge(
        graph, nnx.State(params)
    )(x)


def _of_linen(case: Case) -> tuple[Callable[[jax.Array], Any], Layer]:
    module = linen.MultiHeadDotProductAttention(case.heads, dtype=jnp.bfloat16, attention_fn=_attended)
    x = jnp.zeros((1, TOKENS, case.heads * HEAD))
    return lambda key: module.init(key, x)["params"], lambda params, x, segments: module.apply({"params": params}, x)


def _attended(query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
    """Attention as Flax calls it, by JAX's own function."""
    return jax.nn.dot_product_attention(query, key, value, is_causal=True)


class _Attention(eqx.Module):
    """Equinox's own layer holds one sample, and computes the products itself; this one calls JAX's."""

    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    out: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        parts = [jax.vmap(one)(x).reshape(len(x), self.heads, -1) for one in (self.query, self.key, self.value)]
        mixed = jax.nn.dot_product_attention(*parts, is_causal=True)
        return jax.vmap(self.out)(mixed.reshape(x.shape))


def _of_equinox(case: Case) -> tuple[Callable[[jax.Array], Any], Layer]:
    width = case.heads * HEAD

    def make(key: jax.Array) -> Any:
        layers = [eqx.nn.Linear(width, width, use_bias=False, key=one) for one in jax.random.split(key, 4)]
        return _Attention(*layers, case.heads)

    return make, lambda params, x, segments: jax.vmap(params)(x)


def program_of(case: Case, layout: str, target: str) -> Any:
    """Return the program of a train step over one layer of attention."""
    make, apply = layer_of(case)

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        narrow = jax.tree.map(lambda one: one.astype(jnp.bfloat16), params)
        y = apply(narrow, batch["x"].astype(jnp.bfloat16), batch["segments"])
        return (y.astype(jnp.float32) ** 2).mean((1, 2)), {}

    split = outlay.mesh(data=4, model=2, target=target) if "tp" in layout else outlay.mesh(data=8, target=target)
    rules = outlay.Layout([("**", outlay.replicate())]) if layout == "dp" else outlay.fsdp("data", min_size=64)
    if "tp" in layout:
        rules = _tensor_parallel(case) + rules
    batch = {
        "x": np.zeros((SAMPLES, TOKENS, case.heads * HEAD), np.float32),
        "segments": np.zeros((SAMPLES, TOKENS), np.int32),
    }
    step, init = outlay.train_step(loss, optax.sgd(0.1)), outlay.init_state(make, optax.sgd(0.1))
    return outlay.program(step, init, batch, layout=rules + outlay.data_parallel(), mesh=split)


def _tensor_parallel(case: Case) -> Any:
    if case.library in ("nnx", "linen"):  # their kernels have a dim of heads
        by_heads = jax.sharding.PartitionSpec(None, "model")
        first = [(f"params.{name}.kernel", by_heads) for name in ("query", "key", "value")]
        return outlay.Layout([*first, ("params.out.kernel", jax.sharding.PartitionSpec("model"))])
    if case.library == "equinox":  # its weights have the outputs first
        rows = [(f"params.{name}.weight", jax.sharding.PartitionSpec("model")) for name in ("query", "key", "value")]
        return outlay.Layout([*rows, ("params.out.weight", jax.sharding.PartitionSpec(None, "model"))])
    columns = ["**.qkv"] if case.kernels == "fused" else ["**.query", "**.key", "**.value"]
    return outlay.tensor_parallel("model", columns=columns, rows=["**.out"])


def verdict(case: Case, layout: str, target: str) -> tuple[str, str, str]:
    """Return whether it compiles, or why it is refused; its collectives; and the bytes that a device sends."""
    try:
        program = program_of(case, layout, target)
        text = program.compiled.as_text()
        report = outlay.explain(program)
    except outlay.errors.OutlayError as error:
        return "refused: " + " ".join(str(error).split())[:160], "", ""
    except Exception as error:  # what this table is to find
        return f"RAW {type(error).__name__}: " + " ".join(str(error).split())[:160], "", ""
    kernels = len(KERNEL.findall(text))
    counts = Counter(each.kind for each in report.collectives)
    names = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{kernels} fused calls" if kernels else "no fused kernel", names, f"{report.bytes_per_step:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brief", action="store_true", help="one layout for each layer, in turn")
    parser.add_argument("targets", nargs="*", default=TARGETS)
    asked = parser.parse_args()
    for target in asked.targets:
        print(f"\n## {target}\n\n| layer | layout | compiled | collectives | bytes |\n| --- | --- | --- | --- | --- |")
        for number, case in enumerate(cases()):
            for layout in LAYOUTS[number % 3 :][:1] if asked.brief else LAYOUTS:
                print(f"| {case} | {layout} | {' | '.join(verdict(case, layout, target))} |", flush=True)


if __name__ == "__main__":
    main()
