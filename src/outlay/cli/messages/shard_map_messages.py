"""Messages of shard_map, where the program is written for one device's piece and moves data by itself."""

from __future__ import annotations

from outlay.cli.messages.message import KnownMessage, Values


def _named(values: Values) -> Values:
    """The axes out of the set that JAX prints, with the old wording's quotes and without."""
    names = [name.strip(" '\"") for name in values["axes"].split(",") if name.strip(" '\"")]
    return {**values, "axes": ", ".join(map(repr, names)) or "an axis", "tuple": repr(tuple(names))}


BY_HAND = (
    KnownMessage(
        "axis without shard_map",
        (
            r"[Ff]ound an unbound axis name: (?P<axis>\w+)\.(?: To fix this, please call (?P<who>\w+) under)?",
            r"unbound axis name: (?P<axis>\w+)(?P<who>)(?!\w|\.)",
        ),
        "{who} talks to the other devices along '{axis}', but stands outside a shard_map that splits over '{axis}'",
        "call the function through jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...), or delete the "
        "collective: under plain jit a sum or a mean is over the whole array already",
        'a step under outlay.program needs no collectives; mode="manual" runs it inside shard_map',
        derive=lambda values: {**values, "who": values["who"] or "a collective"},
    ),
    KnownMessage(
        "result differs between devices",
        (
            r"out_specs is (?P<spec>P(?:artitionSpec)?DIMS) which implies that the corresponding output "
            r"value is .{0,150}?but it was inferred to be possibly varying over \{(?P<axes>[^}\n]*)\}",
            r"was given out_specs which require replication which can't be statically inferred(?P<spec>)(?P<axes>)"
            r"(?!.{0,400}?inferred to be possibly)",
        ),
        "out_specs promises that a result is the same on all devices along {axes}, but it was computed from their "
        "own pieces and was never summed or gathered",
        "sum it before it is returned: jax.lax.psum or pmean(x, {axes}), or say in out_specs that it is split over "
        "{axes}. check_vma=False only hides it, and changes gradients",
        "a step under outlay.program needs no out_specs",
        derive=_named,
    ),
    KnownMessage(
        "loop starts the same everywhere",
        (
            r"This might be fixed by applying [`']?jax\.lax\.(?:pcast|pvary)\(\.\.\., \(?(?P<axes>[^)\n]*?),?\)(?:, to="
            r"'varying'\))?.{0,10}?,? to the initial carry value corresponding to the input carry (?P<carry>\S+?)\.?\s",
        ),
        "the carry {carry} of a loop starts the same on all devices and comes back different along {axes}",
        "mark the start as different: jax.lax.pcast(start, {tuple}, to='varying'), or derive it from the split "
        "input, such as jnp.zeros_like(x)",
        "",
        derive=_named,
    ),
    KnownMessage(
        "argument split otherwise",
        (
            r"in_specs passed to shard_map: (?P<wanted>P(?:artitionSpec)?DIMS) does not match the specs of the input: "
            r"(?P<found>P(?:artitionSpec)?DIMS) for arg: (?P<type>[^\s]+?)\.?\s",
        ),
        "on Explicit axes in_specs moves nothing, it checks: the argument of type {type} is {found}, not {wanted}",
        "jax.reshard(argument, {wanted}) before the call, or leave in_specs out",
        "",
    ),
    KnownMessage(
        "axis that shard_map does not split",
        (
            r"shard_map (?P<which>in|out)_specs argument must refer to an axis marked as manual \((?:frozenset\()?"
            r"\{(?P<axes>[^}]*)\}.{0,80}?(?:in|out)_specs(?:\S*) refers to '(?P<axis>[^'\n]+)'",
        ),
        "{which}_specs names the axis '{axis}', but shard_map splits over {axes} only",
        "correct the name, give the mesh that axis, or add it to axis_names=",
        "",
        derive=_named,
    ),
    KnownMessage(
        "piece does not divide",
        (
            r"The size of (?P<who>all_to_all) split_axis \((?P<size>\d+)\) has to be divisible by the size of the "
            r"named axis (?P<axis>\w+) \((?P<num>\d+)\)",
            r"tiled (?P<who>reduce_scatter) operand scatter dimension size (?P<size>\d+) must be divisible by "
            r"shard_count (?P<num>\d+)(?P<axis>)",
        ),
        "inside shard_map {who} hands each of {num} devices a part of a dim that has {size} entries on a device; "
        "{size} does not divide by {num}",
        "mind that the dim is the size of one device's piece; make it a multiple of {num}, or use another dim",
        "",
    ),
)
