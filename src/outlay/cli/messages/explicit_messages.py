"""Messages of Explicit axes, where JAX refuses what it would otherwise choose, and of mixing the kinds of axes."""

from __future__ import annotations

from outlay.cli.messages.message import KnownMessage

_OUTLAY = (
    "outlay.mesh makes Auto axes; with explicit=True a program lists all such places at once, with the edit for each"
)
_OR_AUTO = "; or make the axes Auto: jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))"

EXPLICIT = (
    KnownMessage(
        "sum over a split dim",
        (
            r"Contracting dimensions are sharded and it is ambiguous how the output should be sharded(?:.{0,200}?Got "
            r"lhs_contracting_spec=(?P<left>\([^)\n]*\)) and rhs_contracting_spec=(?P<right>\([^)\n]*\)))?",
            r"dot_general requires contracting dimensions to have consistent sharding, got (?P<left>\([^)\n]*\)) and "
            r"(?P<right>\([^)\n]*\))",
        ),
        "on Explicit axes a matrix product sums over dims that are split, {left} on the left and {right} on the right; "
        "JAX does not choose between a whole result and a split one",
        "say it: jnp.matmul(a, b, out_sharding=P(...)), or jnp.einsum likewise; jax.reshard an operand where the two "
        f"sides differ{_OR_AUTO}",
        _OUTLAY,
    ),
    KnownMessage(
        "lookup in a split table",
        (
            r"Use [`']?\.at\[\.\.\.\]\.(?P<how>get|set\S*)\(out_sharding=\)[`']? to provide output PartitionSpec"
            r"(?:.{0,250}?operand=ShapedArray\((?P<operand>[^)\n]*)\), indices=ShapedArray\((?P<indices>[^)\n]*)\))?",
        ),
        "on Explicit axes indexing does not say how its result is split: table {operand}, indices {indices}",
        "x[i] becomes x.at[i].get(out_sharding=P(...)); x.at[i].add(y) takes out_sharding= too; for a slice or for "
        f"take_along_axis, jax.reshard the array so that the indexed dim is whole{_OR_AUTO}",
        _OUTLAY,
    ),
    KnownMessage(
        "operands split differently",
        (
            r"\b(?P<operation>\w+) operation with inputs: (?P<types>[^\n]{1,200}?) produces an illegally sharded "
            r"result",
            r"\b(?P<operation>\w+) got incompatible shardings for broadcasting: (?P<types>[^\n]{1,200}?)\.(?:\s|$)",
            r"Incompatible types for (?P<operation>\w+) arguments: (?P<types>[^\n]{1,200})",
            r"All operands should have the same sharding\. Got (?P<operation>)shardings (?P<types>[^\n]{1,600})",
        ),
        "on Explicit axes the operands of {operation} must be split alike; here they are {types}",
        f"move one to the other's sharding first: jax.reshard(x, P(...)){_OR_AUTO}",
        _OUTLAY,
        derive=lambda values: {**values, "operation": values["operation"] or "one operation"},
    ),
    KnownMessage(
        "reshape of a split dim",
        (
            r"This reshape is not supported\..{0,200}?Got operand type: (?P<type>\S+), new sizes: (?P<sizes>\([\d, "
            r"]*\))",
        ),
        "on Explicit axes reshaping {type} to {sizes} merges or cuts a split dim",
        f"say how the result is split: jax.lax.reshape(x, {{sizes}}, out_sharding=P(...)), or jax.reshard "
        f"first{_OR_AUTO}",
        _OUTLAY,
    ),
    KnownMessage(
        "constraint is only an assertion",
        (
            r"with_sharding_constraint[`']? acts as an assert when all axes of mesh are of type "
            r"[`']?Explicit.{0,100}?The array sharding: (?P<found>P(?:artitionSpec)?DIMS) did not match the sharding "
            r"provided: (?P<wanted>P(?:artitionSpec)?DIMS)\.",
        ),
        "on Explicit axes with_sharding_constraint moves nothing, it checks: the value is {found}, not {wanted}",
        f"jax.reshard(x, {{wanted}}) moves it{_OR_AUTO}",
        "outlay.constrain does what the kind of axes needs",
    ),
    KnownMessage(
        "spec of the other kind of axes",
        (
            r"The spec of NamedSharding passed to (?P<who>with_sharding_constraint) can only refer to Auto axes of "
            r"the mesh\. Got spec=(?P<spec>P(?:artitionSpec)?DIMS) and mesh=",
            r"PartitionSpec passed to (?P<who>reshard) cannot contain axis names that are of type Auto or Manual\. Got "
            r"PartitionSpec: (?P<spec>P(?:artitionSpec)?DIMS) with axis name",
            r"Axes mentioned in [`']?manual_axis_type[`']? field of ShapedArray should be of type(?P<who>)(?P<spec>)",
        ),
        "a constraint and an axis do not belong together {spec}: with_sharding_constraint is for Auto axes, "
        "jax.reshard for Explicit ones, and inside shard_map neither is needed, since each device sees its own piece",
        "Auto: with_sharding_constraint(x, NamedSharding(mesh, spec)); Explicit: jax.reshard(x, spec); inside "
        "shard_map: delete the line",
        "outlay.constrain is right in all three",
        derive=lambda values: {
            **values,
            "spec": f"({values['who']} with {values['spec']})" if values["spec"] else "here",
        },
    ),
)
