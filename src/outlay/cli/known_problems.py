"""Problems that users of JAX run into, recognised from the outside, each with its fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_DASHES = "‐‑‒–—−"
_GPU = Path("/dev/nvidia0")


def known_problems(
    devices: Sequence[Any], environment: Mapping[str, str], versions: Mapping[str, str | None], failure: str = ""
) -> Iterator[str]:
    """Each problem that applies here, in words, with what to do.

    Args:
        devices: the devices that JAX found; empty if it did not start.
        environment: the environment variables.
        versions: of the installed packages.
        failure: why JAX does not start; empty if it does.
    """
    flags = environment.get("XLA_FLAGS", "")
    if any(dash in flags for dash in _DASHES):
        yield "XLA_FLAGS holds a typographic dash, copied from a document, where XLA expects '--': type it anew"
    if versions["jax"] != versions["jaxlib"]:
        yield (
            f"jax {versions['jax']} and jaxlib {versions['jaxlib']} differ: pip install -U 'jax=={versions['jax']}' "
            f"'jaxlib=={versions['jax']}'"
        )
    if environment.get("JAX_DISABLE_JIT", "").lower() in ("1", "true"):
        yield "JAX_DISABLE_JIT is on, so nothing is compiled and nothing laid out: unset it"
    if not devices and "imported" in failure:
        named = [name for name in environment if name.startswith("JAX_") and name.lower() in failure]
        yield f"JAX cannot be imported: correct or unset {', '.join(named) or 'what it names, or install it again'}"
        return
    if not devices and failure.startswith("XLA"):
        yield "XLA_FLAGS holds what this XLA does not take: correct it, or take it out; flags come and go with versions"
        return
    if not devices:
        yield "JAX does not start: unset JAX_PLATFORMS, or install the plugin of the platform that it names"
        return
    if devices[0].platform == "cpu" and _GPU.exists():
        yield "this machine has an NVIDIA GPU, but JAX does not use it: pip install -U 'jax[cuda13]'"
    if len(devices) == 1:
        yield "there is one device, so a layout has nothing to spread: add --devices 8, or outlay.simulate(8)"
    tasks = environment.get("SLURM_NTASKS", "1")
    if tasks.isdecimal() and int(tasks) > 1:
        yield f"SLURM started {tasks} processes: call outlay.join() first, or each works alone"
