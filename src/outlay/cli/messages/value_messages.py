"""Messages about getting values in and out of arrays that several devices or processes hold."""

from __future__ import annotations

from outlay.cli.messages.message import KnownMessage

VALUES = (
    KnownMessage(
        "value held by other processes",
        (
            r"Fetching value for [`']?jax\.Array[`']? that spans non-addressable \(non process local\) devices is "
            r"not possible",
        ),
        "an array was printed, saved or made into numpy, but other processes hold a part of it",
        "for a scalar: jit with out_shardings=NamedSharding(mesh, P()); for the whole: "
        "outlay.arrays.gather(x), or multihost_utils.process_allgather(x, tiled=True), on all processes, never inside "
        "`if "
        "jax.process_index() == 0`; for the own part: x.addressable_shards",
        "",
    ),
    KnownMessage(
        "gather needs tiled=True",
        (r"Gathering global non-fully-addressable arrays only supports tiled=True",),
        "process_allgather of an array that spans processes joins its pieces; without tiled=True it would stack them",
        "multihost_utils.process_allgather(x, tiled=True), on all processes",
        "",
    ),
    KnownMessage(
        "values differ between processes",
        (
            r"passed to device_put is not the same on each process\..{0,200}?Expected: (?P<expected>\[.{1,200}?\]); "
            r"got: (?P<found>[^\n]{1,200}?)\.(?:\s|$)",
            r"passed to device_put is not the same on each process(?P<expected>)(?P<found>)(?!.{0,250}?Expected:)",
        ),
        "device_put onto the devices of several processes wants the whole value, the same in each; the values differ. "
        "It also compares them, which is slow and takes memory",
        "for data: jax.make_array_from_process_local_data(sharding, own_part); for parameters: seed all processes "
        "alike, or make them inside jit with out_shardings",
        "program.init makes the state inside jit, already split",
    ),
    KnownMessage(
        "one device for an array of many processes",
        (
            r"When the second argument to [`']?device_put[`']? is a Device, the first argument must be a fully "
            r"addressable array",
        ),
        "an array that several processes hold cannot be moved to one device by device_put",
        "multihost_utils.process_allgather(x, tiled=True) first, on all processes",
        "",
    ),
    KnownMessage(
        "transfer between processes",
        (r"does not support cross-host device transfers",),
        "device_put from the devices of one process to those of another needs a connection that is not set up",
        "set jax_cross_host_transfer_socket_address to an address and a fixed port of this machine before JAX "
        "starts, or move the value inside jit",
        "",
    ),
    KnownMessage(
        "random key as numpy",
        (r"JAX array with PRNGKey dtype cannot be converted to a NumPy array",),
        "a typed key of jax.random was saved, printed or compared as numpy; it holds words of a generator, not numbers",
        "jax.random.key_data(key) gives the words, and jax.random.wrap_key_data(words) the key back",
        "",
    ),
    KnownMessage(
        "picture of more than two dims",
        (r"visualize_sharding[`']? only works for shapes with 1 and 2 dimensions",),
        "jax.debug.visualize_array_sharding draws arrays of one or two dims only",
        "draw a slice of the array, or its sharding.shard_shape(x.shape)",
        "outlay.show(tree) shows any tree of arrays, of any number of dims",
    ),
    KnownMessage(
        "checkpoint of other devices",
        (r"Topology mismatch detected\. The checkpoint was saved with a different topology",),
        "orbax was asked to restore onto the devices that the checkpoint was saved from, and they are not these",
        "restore with a target whose leaves say where to go: jax.ShapeDtypeStruct(shape, dtype, "
        "sharding=NamedSharding(mesh, spec)); without a sharding the error stays, and hides a wrong shape",
        "program.plan says the spec of each leaf",
    ),
    KnownMessage(
        "checkpoint of another tree",
        (
            r"Structure mismatch: Target path \((?P<path>[^)\n]*?),?\) not found in metadata_tree\..{0,80}?Metadata "
            r"keys: (?:dict_keys\()?(?P<keys>\[[^\n]{0,300}?\])",
        ),
        "the target has a leaf {path} that the checkpoint lacks; it holds {keys}",
        "restore into the tree that was saved, then rename; a leaf that is new must be made anew",
        "",
    ),
    KnownMessage(
        "checkpoint of another shape",
        (r"Requested shape: (?P<wanted>\([\d, ]*\)) is not compatible with the stored shape: (?P<stored>\([\d, ]*\))",),
        "the target asks for shape {wanted}, the checkpoint holds {stored}",
        "make the model of the size that was saved; pad or cut afterwards, not while restoring",
        "",
    ),
)
