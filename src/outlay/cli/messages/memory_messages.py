"""Messages about memory: what does not fit, what was given away, and copies that nobody asked for."""

from __future__ import annotations

from outlay.cli.messages.message import KnownMessage, Values


def _amount(values: Values) -> Values:
    amount = values["amount"]
    if amount.isdecimal():
        amount = f"{int(amount) / 2**30:,.2f} GiB" if int(amount) >= 2**30 // 100 else f"{int(amount):,} bytes"
    return {**values, "amount": amount or "what was asked for"}


def _remedy(values: Values) -> Values:
    """`jax.debug.print` of a split array makes the same warning, and is harmless."""
    one_device = "maximal device" in values["after"]
    return {
        **values,
        "origin": f" ({values['origin']})" if values["origin"] else "",
        "remedy": (
            "this one goes to a single device, as for jax.debug.print or a callback: print a sum or one element instead"
            if one_device
            else "find the two lines that want this value split differently, and change one; or go there in two steps, "
            "one mesh axis at a time, with a constraint in between"
        ),
    }


MEMORY = (
    KnownMessage(
        "array given away",
        (
            r"Array has been deleted with shape=(?P<type>\S+?)\.?(?:\s|$)",
            r"(?:Buffer|buffer) has been deleted or donated(?P<type>)",
            r"Donation requested for invalid buffer(?P<type>)",
        ),
        "an array{type} was donated to an earlier call (donate_argnums), which reused its memory: it is gone",
        "go on with what the call returned: state = step(state, batch), or leave the argument out of donate_argnums",
        "a program says which leaves are gone, by path; its step donates the state",
        derive=lambda values: {**values, "type": f" of type {values['type']}" if values["type"] else ""},
    ),
    KnownMessage(
        "donation did not help",
        (r"Some donated buffers were not usable: (?P<types>[^\n]{1,600}?)\.\s+See an explanation",),
        "memory was offered for reuse, but no output has the same shape, dtype and sharding as {types}",
        "return the new value with the type and the sharding of the old one, or donate only what comes back",
        "a program gives the state back where it was, and refuses a step that changes a shape or a dtype of it",
        weight="warning",
    ),
    KnownMessage(
        "donated twice",
        (
            r"Attempt to donate the same buffer twice in Execute\(\) \(flattened argument "
            r"(?P<second>\d+).{0,60}?(?P<first>\d+)\)",
        ),
        "arguments {first} and {second} (counted over all leaves) are the same array, and both are donated",
        "copy one: jnp.copy(x). Often a state holds one array in two places, such as an average that starts as the "
        "parameters",
        "",
    ),
    KnownMessage(
        "out of memory",
        (
            r"Out of memory (?:while trying to allocate|allocating) (?P<amount>\d+(?= bytes)|[\d.]+\s?[KMGTP]i?B)",
            r"Failed to allocate request for (?P<amount>[\d.]+\s?[KMGTP]i?B) \(\d+B\) on device ordinal \d+",
            r"Attempting to (?:allocate|reserve) (?P<amount>[\d.]+\w)(?: at the bottom of memory)?\. That was not "
            r"possible",
        ),
        "a device has no room for {amount} more",
        "split what is large over more devices, make the batch smaller, or recompute activations with "
        "jax.checkpoint. On a shared GPU, look at nvidia-smi and XLA_PYTHON_CLIENT_MEM_FRACTION first",
        "outlay.show(plan) says which leaf fills which device before anything is allocated; program.init makes the "
        "state already split",
        derive=_amount,
    ),
    KnownMessage(
        "does not fit on the TPU",
        (
            r"Ran out of memory in memory space (?P<space>\w+)\. Used (?P<used>\S+) of (?P<limit>\S+) \w+\.",
            r"Ran out of memory on (?P<space>\w+), the total memory required for (?P<what>[\w ]+?) \((?P<used>\S+?)\) "
            r"exceeds available \w+ \((?P<limit>\S+?)\)",
        ),
        "{what} needs {used}, and a device has {limit} of {space}. It was found while compiling; nothing ran",
        "temporaries are activations, mostly: recompute them with jax.checkpoint, or make the batch smaller. If "
        "arguments are large, split the state further",
        "outlay.show(plan) says what the state takes on each device",
        derive=lambda values: {**values, "what": values.get("what") or "the compiled program"},
    ),
    KnownMessage(
        "compiler cannot make it fit",
        (
            r"Can't reduce memory use below (?P<wanted>[\d.]+\s?\w+)(?: \(\d+ bytes\))? by rematerialization"
            r"(?:; only reduced to (?P<reached>[\d.]+\s?\w+))?",
        ),
        "XLA tried to recompute values to save memory: it wanted {wanted} on a device, and got no lower than "
        "{reached}. What comes next is slow or out of memory",
        "split the activations too (batch dim over the data axis), or use jax.checkpoint on the layers and a smaller "
        "batch",
        "",
        weight="warning",
        derive=lambda values: {**values, "reached": values["reached"] or "needed"},
    ),
    KnownMessage(
        "whole copy on every device",
        (
            r"\[SPMD\] Involuntary full rematerialization\. The compiler (?:cannot go|was not able to go) from "
            r"sharding (?P<before>\{.{1,300}?\}) to (?P<after>\{.{1,300}?\}) (?:efficiently|without).{0,40}?for HLO "
            r"operation (?P<operation>%\S+) = "
            r"(?P<type>[a-z]+\d*\[[\d,]*\])(?:[^\n]{0,800}?op_name=\"(?P<origin>[^\"]*)\")?",
        ),
        "the value of {operation}{origin}, of type {type} on a device, is put together whole on every device and cut "
        "again, from {before} to {after}. It is right, but slow and large",
        "{remedy}",
        "outlay.constrain(x, P(...)) names the split of a value in the middle of a step",
        weight="warning",
        derive=_remedy,
    ),
)
