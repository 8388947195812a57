"""Messages about which devices arrays are on, and which mesh they belong to."""

from __future__ import annotations

from outlay.cli.messages.message import KnownMessage, Values

_DEVICES = r"with device ids \[(?P<{}>[\d, .]*)\] on platform \w+"
_SHOWN = 8


def _ids(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _compared(values: Values) -> Values:
    """What a reader must find out by comparing two lists of numbers."""
    first, second = _ids(values["ids"]), _ids(values["other_ids"])
    words = {**values, "on": _on(first), "other_on": _on(second)}
    if first != second and sorted(first) == sorted(second):
        why = "these are the same devices in another order: they come from two meshes"
        cure = "build one mesh and use it for both"
    elif "context mesh" in values["other"]:
        why = "jax.set_mesh makes every jit inside it run on the whole mesh"
        cure = "leave the scope of jax.set_mesh for work on one device, or place the array on the mesh first"
    elif min(len(first), len(second)) == 1:
        stray = values["what"] if len(first) == 1 else values["other"]
        why = f"{stray} was put on one device for good, by jax.device_put(x, device) or by a checkpoint"
        cure = "place it on the mesh first: jax.device_put(it, NamedSharding(mesh, P()))"
    else:
        why = "they come from two meshes"
        cure = "move one of them with jax.device_put, outside jit, or build one mesh and use it for both"
    return {**words, "why": why, "cure": cure}


def _difference(values: Values) -> Values:
    types, other_types = values["types"], values["other_types"]
    if values["sizes"] == values["other_sizes"]:
        words = f"both are {values['sizes']}, but the axes of one are {types}, of the other {other_types}"
    else:
        words = f"{values['sizes']} {types} and {values['other_sizes']} {other_types}"
    return {**values, "difference": words}


def _on(ids: list[str]) -> str:
    """The devices in words, as short as they can be."""
    if len(ids) > 2 and ids == [str(int(ids[0]) + i) for i in range(len(ids))]:
        return f"devices {ids[0]} to {ids[-1]}"
    shown = ", ".join(ids[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")
    return f"device {shown}" if len(ids) == 1 else f"devices {shown}"


PLACEMENT = (
    KnownMessage(
        "shard_map over another mesh",
        (
            r"The context mesh (?:Abstract)?Mesh\((?P<context>[^)]*\([^)]*\))?.{0,120}? should match the mesh "
            r"passed to shard_map (?:Abstract)?Mesh\((?P<own>[^)]*\([^)]*\))?",
        ),
        "jax.shard_map was given mesh={own}, inside jax.set_mesh of another one, {context}",
        "leave mesh= out and use the axis names of the mesh that is set; or call it outside jax.set_mesh, where any "
        "mesh over the same devices in the same order will do",
        "outlay.program runs such a step as it is, if all its meshes have the program's devices in order; a mixture of "
        "that and of P(...) without a mesh it refuses, with the line",
    ),
    KnownMessage(
        "incompatible devices",
        (
            r"Received incompatible devices for jitted computation\. Got (?P<what>.{1,200}?) "
            r"(?:of \S+ )?(?:with shape \S+ and )?" + _DEVICES.format("ids") + r" and (?P<other>.{1,200}?) "
            r"(?:of \S+ )?(?:with shape \S+ and )?" + _DEVICES.format("other_ids"),
        ),
        "{what} is on {on}, {other} on {other_on}; one compiled function runs on one ordered list of devices. Here "
        "{why}.",
        "{cure}",
        "a program places its state and its batch itself; outlay.put(tree, plan, mesh) places any other tree",
        derive=_compared,
    ),
    KnownMessage(
        "two meshes",
        (
            r"Mesh for all inputs should be equal\. Got one mesh: \w*Mesh\((?P<sizes>[^\n(]{0,200}?), "
            r"axis_types=(?P<types>DIMS)[^\n]{0,200}?\) and another mesh: \w*Mesh\((?P<other_sizes>[^\n(]{0,200}?), "
            r"axis_types=(?P<other_types>DIMS)[^\n]{0,200}?\)",
        ),
        "arrays of two meshes meet: {difference}",
        "build one mesh, with axis_types written out, and use it everywhere: jax.make_mesh makes Explicit axes, "
        "jax.sharding.Mesh makes Auto ones",
        "outlay.mesh makes Auto axes, and Explicit ones only with explicit=True",
        derive=_difference,
    ),
    KnownMessage(
        "sharding is not the one of jit",
        (
            r"Sharding passed to (?P<to>p?jit) does not match the sharding on the respective arg\. Got \w+ sharding: "
            r"[^\n]{0,300}?spec=(?P<wanted>P(?:artitionSpec)?DIMS)(?:, memory_kind=\w+)?\),\s+arg sharding: "
            r"[^\n]{0,300}?spec=(?P<found>P(?:artitionSpec)?DIMS)(?:, memory_kind=\w+)?\) for arg type: (?P<type>\S+)",
        ),
        "in_shardings of jit ask for {wanted}, but an argument of type {type} was placed as {found}, and jit does "
        "not move arrays that were placed on purpose",
        "jax.device_put(argument, sharding) before the call, or leave in_shardings out: jit then takes arrays as "
        "they are",
        "a program says which leaf lives elsewhere, by path",
    ),
    KnownMessage(
        "mesh larger than the machine",
        (r"Number of devices (?P<num>\d+) must be >= the product of mesh_shape (?P<shape>\([\d, ]*\))",),
        "the mesh {shape} needs more devices than the {num} that JAX has",
        "choose sizes whose product is {num}, or simulate more devices before JAX starts: "
        'jax.config.update("jax_num_cpu_devices", 8)',
        "outlay.simulate(8) before the first use of JAX, or --devices 8; outlay.mesh(data=-1, model=2) takes all "
        "there are",
    ),
    KnownMessage(
        "names do not fit the mesh",
        (r"Mesh requires .{0,150}? but got devices\.ndim == (?P<dims>\d+) and len\(axis_names\) == (?P<names>\d+)",),
        "the array of devices has {dims} dim(s), but {names} axis name(s) are given",
        "reshape the devices to one dim for each name: np.array(jax.devices()).reshape(4, 2), or jax.make_mesh((4, 2), "
        "names)",
        "outlay.mesh(data=4, model=2) takes names and sizes together",
    ),
    KnownMessage(
        "no mesh in context",
        (
            r"\b(?P<who>with_sharding_constraint|jit|\w+) requires a non-empty mesh in context if you are passing",
            r"Please set a mesh via [`']?jax\.set_mesh[`']? if a PartitionSpec is passed to (?P<who>\w+)",
            r"Using PartitionSpec when you are not under a mesh context is not allowed(?P<who>)",
            r"The context mesh cannot be empty\. Use [`']?jax\.set_mesh(?P<who>)",
        ),
        "a bare PartitionSpec names axes, but there is no mesh to find them in",
        "pass NamedSharding(mesh, spec) instead of the spec, mesh=mesh to shard_map, or call it inside `with "
        "jax.set_mesh(mesh):`",
        "outlay.constrain(x, spec) inside a program knows the mesh, and does nothing outside one",
    ),
    KnownMessage(
        "annotated parameter without a mesh",
        (
            r"An auto mesh context or metadata is required if creating a variable with annotation "
            r"(?P<annotation>[^\n]{1,200}?)\. ",
        ),
        "Flax makes a parameter that carries {annotation} and looks for a mesh with Auto axes to put it on",
        "make the model inside `with jax.set_mesh(mesh):` with Auto axes, or take the annotation out of the model",
        "a layout needs no annotations in the model: rules name parameters by path",
    ),
)
