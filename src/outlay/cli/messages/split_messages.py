"""Messages about how one array is split: dims that do not divide, specs that do not fit the array or the mesh."""

from __future__ import annotations

from outlay.cli.messages.message import KnownMessage, Values, axes_of
from outlay.core.suggest import did_you_mean

_LAYOUT = "layout.plan(tree, mesh) lists every such leaf at once, by path, before anything is allocated"


def _padded(values: Values) -> Values:
    size, num = int(values["size"]), int(values["num"])
    axes = axes_of(values["spec"], int(values["dim"]))
    return {
        **values,
        "who": f" of {values['leaf']}" if values.get("leaf") else "",
        "along": f"the devices along {axes}" if axes else "the devices along its axes",
        "padded": str(-(-size // num) * num),
    }


def _suggested(values: Values) -> Values:
    names = [name.strip(" '\"") for name in values["axes"].split(",") if name.strip(" '\"")]
    hint = did_you_mean(values["axis"], names)
    near = f"; {hint}" if hint.startswith("did") else ""
    return {**values, "hint": near, "names": ", ".join(map(repr, names))}


SPLITS = (
    KnownMessage(
        "dim does not divide",
        (
            r"(?:pytree key path (?P<leaf>\S+) was given the sharding )?NamedSharding\(mesh=[^\n]{0,400}?"
            r"spec=P(?:artitionSpec)?(?P<spec>DIMS)(?:, memory_kind=\w+)?\) implies that array axis "
            r"(?P<dim>\d+) is partitioned (?P<num>\d+) times, but the dimension size is (?P<size>\d+)",
            r"Sharding spec (?P<spec>DIMS) implies that array axis (?P<dim>\d+) is partitioned "
            r"(?P<num>\d+) times, but does not evenly divide the dimension size (?P<size>\d+)",
            r"the passed (?P<leaf>\S+) of shape \S+ [^\n]{0,200}?corresponds to in_specs of value "
            r"P(?:artitionSpec)?(?P<spec>DIMS), which maps array axis (?P<dim>\d+) \(of size "
            r"(?P<size>\d+)\) to mesh ax[ie]s [^\n]{0,100}? \(of (?:total )?size (?P<num>\d+)\)",
        ),
        "dim {dim}{who}, of size {size}, does not divide by {num}, {along}. JAX does not pad.",
        "pad the dim to {padded} and mask the rest, or write None for it in the spec so that it stays whole, or split "
        "another dim, or use an axis whose size divides {size}",
        f'{_LAYOUT}; outlay.Rule(..., otherwise="another_dim") or "replicate" says what to do instead',
        derive=_padded,
    ),
    KnownMessage(
        "constraint does not divide",
        (
            r"shape=\[(?P<shape>[\d, ]*)\] is incompatible with mesh_shape=OrderedDict\((?P<mesh>[^\n]{0,200}?)\): "
            r"dim_size=(?P<size>\d+) is not divisible by axis_size=(?P<num>\d+)",
        ),
        "a value that jit returns carries a with_sharding_constraint that does not divide: some dim of it is split "
        "over an axis of {num} devices and is no multiple of {num}. (The numbers of the message are pieces of that "
        "dim. Older JAX accepted this and silently kept the whole value on every device.)",
        "find the with_sharding_constraint on what jit returns, and write None for that dim in its spec, or pad the "
        "dim to a multiple of {num}",
        'outlay.constrain(x, "hidden") with a rule for hidden is refused when the program is made, with the cure',
    ),
    KnownMessage(
        "axis not in the mesh",
        (
            r"Resource axis: (?P<axis>\S+) of (?P<spec>P(?:artitionSpec)?DIMS) is not found in mesh: "
            r"\((?P<axes>[^\n)]*)\)",
        ),
        "{spec} names the axis '{axis}', but the axes of the mesh are {names}{hint}",
        "correct the name in the spec, or give the mesh an axis '{axis}'",
        "a layout refuses the rule that names such an axis, and says which rule",
        derive=_suggested,
    ),
    KnownMessage(
        "axis used twice",
        (
            r"A single NamedSharding spec(?:ification)? (?:specification )?can map every mesh axis to at most one "
            r"positional dimension, but (?P<spec>P(?:artitionSpec)?DIMS) has duplicate entries for "
            r"[`'\"]?(?P<axis>\w+)",
        ),
        "{spec} splits two dims over the axis '{axis}'; the devices of an axis can split one dim only",
        "keep '{axis}' in one dim and write None or another axis in the other",
        "outlay.Rule refuses such a spec where it is written",
    ),
    KnownMessage(
        "spec longer than the array",
        (
            r"spec=(?P<spec>P(?:artitionSpec)?DIMS)(?:, memory_kind=\w+)?\) is only valid for values of "
            r"rank at least (?P<wanted>\d+), but was applied to a value of rank (?P<rank>\d+)",
            r"(?:in|out)_specs is (?P<spec>P(?:artitionSpec)?DIMS) which has length (?P<wanted>\d+), but "
            r"[^\n]{0,300}? has shape \S+, which has rank (?P<rank>\d+)",
        ),
        "{spec} has {wanted} entries, but the array has {rank} dim(s); often a bias or a scalar met the spec of a "
        "matrix",
        "give this array a spec with no more entries than it has dims: {rank}; P() for a scalar",
        f"{_LAYOUT}, as 'too many dims'",
    ),
    KnownMessage(
        "trees of shardings differ",
        (
            r"pytree structure error: different numbers of pytree children at key path\s+"
            r"pjit (?P<which>in|out)_shardings(?P<where>\S*)",
        ),
        "{which}_shardings{where} is a tree with other children than the values it is for",
        "build it from the values: jax.tree.map(lambda leaf: NamedSharding(mesh, spec), values), or give one "
        "sharding for all",
        "outlay.program makes the shardings from the tree itself",
    ),
)
