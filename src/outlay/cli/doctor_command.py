"""`outlay doctor`: show what is installed and set, and what to do about it; or explain an error message."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from outlay.cli.failures import CHECK_FAILED
from outlay.cli.options import JsonOption
from outlay.cli.output import print_facts
from outlay.core.error_types import BackendError

MessageOption = Annotated[
    str | None,
    typer.Option("--message", metavar="TEXT|-", help="Explain an error or a log instead; - reads it from stdin."),
]


def doctor(message: MessageOption = None, as_json: JsonOption = False) -> None:
    """Show versions, devices and settings, and name known problems.

    Exits with 1 when JAX cannot start, or when nothing in a message is known.
    """
    if message is not None:
        pasted = typer.get_text_stream("stdin", errors="replace").read() if message == "-" else message
        _explain(pasted, as_json)
        return
    facts = examine()
    print_facts(facts, as_json=as_json)
    if facts.failure:
        raise typer.Exit(CHECK_FAILED)


def _explain(text: str, as_json: bool) -> None:
    from outlay.cli.diagnosis import diagnose_text

    if not text.strip():
        raise typer.BadParameter("there is nothing to explain: the text is empty", param_hint="--message")
    diagnosis = diagnose_text(text)
    print_facts(diagnosis, as_json=as_json)
    if not diagnosis.findings:
        raise typer.Exit(CHECK_FAILED)


_NEEDED = ("outlay", "jax", "jaxlib", "numpy", "optax")
_OPTIONAL = ("flax", "grain", "matplotlib", "equinox", "dm-haiku", "orbax-checkpoint")


@dataclass(frozen=True)
class Doctor:
    """The state of this environment.

    Attributes:
        versions: those of Python and the packages that Outlay needs; None for one that runs without being installed.
        optional: versions of packages that some parts need; None if missing.
        platform: what JAX runs on; empty if it does not start.
        devices: the devices by id, in words.
        started_by: what had started JAX's backend before this examination.
        failure: why JAX does not start; empty if it does.
        environment: the relevant variables that are set: name, value, and effect.
        problems: known problems that apply, each with its fix.
    """

    versions: Mapping[str, str | None]
    optional: Mapping[str, str | None]
    platform: str
    devices: tuple[str, ...]
    started_by: str
    failure: str
    environment: tuple[tuple[str, str, str], ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        installed = {name: version or "not installed" for name, version in {**self.versions, **self.optional}.items()}
        return "\n".join(
            [
                *_section("versions", installed),
                *_section("backend", self._backend()),
                *_section("environment", {f"{name}={value}": what for name, value, what in self.environment}),
                "problems" if self.problems else "no known problems",
                *(f"  {problem}" for problem in self.problems),
            ]
        )

    def _backend(self) -> dict[str, str]:
        if self.failure:
            return {"does not start": self.failure}
        return {
            "platform": self.platform,
            "devices": f"{len(self.devices)}: {', '.join(self.devices)}",
            "started by": self.started_by,
        }


def examine() -> Doctor:
    """Collect the facts; starts JAX's backend to list the devices."""
    import platform

    from outlay.core.runtime_flags import versions

    failure, started_by = _flags_failure() or _import_failure(), ""
    devices: list[Any] = []
    if not failure:
        started_by = _started_by()
        devices, failure = _devices()
    environment = tuple((name, value, what) for name, value in os.environ.items() if (what := meaning_of(name)))
    needed = versions(_NEEDED)
    return Doctor(
        versions={"python": platform.python_version(), **needed},
        optional=versions(_OPTIONAL),
        platform=devices[0].platform if devices else "",
        devices=tuple(f"{device.id} {device.device_kind}" for device in devices),
        started_by=started_by,
        failure=failure,
        environment=tuple(sorted(environment)),
        problems=tuple(known_problems(devices, os.environ, needed, failure)),
    )


def _started_by() -> str:
    from outlay.core.backend_watch import describe_start
    from outlay.core.jax_compat import backend_is_started

    return describe_start() if backend_is_started() else "this command, to list the devices; nothing had before"


def _devices() -> tuple[list[Any], str]:
    from outlay.core.jax_compat import attached_devices, use_cpu_if_alone

    use_cpu_if_alone()  # the search for accelerators that are not here prints more than the doctor has to say
    try:
        return attached_devices(), ""
    except BackendError as error:
        return [], str(error).partition("\n")[0]


def _flags_failure() -> str:
    """Return why XLA would abort the process that starts it; empty if it would not."""
    if not os.environ.get("XLA_FLAGS"):
        return ""
    from outlay.core.flag_check import error_of_flags

    refusal = error_of_flags(os.environ["XLA_FLAGS"])
    return f"XLA aborts the process: {refusal}" if refusal else ""


def _import_failure() -> str:
    """Return why JAX cannot be imported; empty where it can."""
    try:
        import jax  # noqa: F401  its import is also what could start the backend
    except Exception as error:  # a variable with an invalid value, or a broken installation
        return f"JAX cannot be imported: {type(error).__name__}: {error}"
    return ""


def _section(title: str, rows: Mapping[str, str]) -> list[str]:
    if not rows:
        return [f"{title}: nothing that matters is set", ""]
    width = max(map(len, rows))
    return [title, *(f"  {name:<{width}}  {value}" for name, value in rows.items()), ""]


_DASHES = "‐‑‒–—−"
_GPU = Path("/dev/nvidia0")  # the driver makes it, whether or not JAX can use the GPU


def known_problems(
    devices: Sequence[Any], environment: Mapping[str, str], versions: Mapping[str, str | None], failure: str = ""
) -> Iterator[str]:
    """Yield each known problem that applies here, with its fix.

    Args:
        devices: the devices that JAX found; empty if it did not start.
        environment: the environment variables.
        versions: the versions of the installed packages.
        failure: why JAX does not start; empty if it does.
    """
    flags = environment.get("XLA_FLAGS", "")
    if any(dash in flags for dash in _DASHES):
        yield "XLA_FLAGS holds a typographic dash, copied from a document, where XLA expects '--': type it again"
    if versions["jax"] != versions["jaxlib"]:
        yield (
            f"jax {versions['jax']} and jaxlib {versions['jaxlib']} differ: pip install -U 'jax=={versions['jax']}' "
            f"'jaxlib=={versions['jax']}'"
        )
    if environment.get("JAX_DISABLE_JIT", "").lower() in ("1", "true"):
        yield "JAX_DISABLE_JIT is on, so nothing is compiled or laid out: unset it"
    if not devices and "imported" in failure:
        named = [name for name in environment if name.startswith("JAX_") and name.lower() in failure]
        yield f"JAX cannot be imported: correct or unset {', '.join(named) or 'what it names, or install it again'}"
        return
    if not devices and failure.startswith("XLA"):
        yield "XLA_FLAGS holds what this XLA does not accept: correct or remove it; flags change with the version"
        return
    if not devices:
        yield "JAX does not start: unset JAX_PLATFORMS, or install the plugin of the platform that it names"
        return
    if devices[0].platform == "cpu" and _GPU.exists():
        yield "this machine has an NVIDIA GPU, but JAX does not use it: pip install -U 'jax[cuda13]'"
    if len(devices) == 1:
        yield "there is only one device, so a layout has nothing to split: add --devices 8, or outlay.simulate(8)"
    tasks = environment.get("SLURM_NTASKS", "1")
    if tasks.isdecimal() and int(tasks) > 1:
        yield f"SLURM started {tasks} processes: call outlay.join() first, or each works alone"
    is_job = "OUTLAY_NUM_PROCESSES" in environment or (tasks.isdecimal() and int(tasks) > 1)
    if is_job and devices[0].platform == "cpu" and _is_before(versions["jaxlib"], "0.12"):
        yield (
            f"jaxlib {versions['jaxlib']}: in a job of CPU devices jax.lax.psum_scatter gives wrong sums at times, "
            "without an error (gloo's; Outlay exchanges and adds instead): use outlay.collectives.sum_scatter, or jax "
            "0.12"
        )


def _is_before(version: str | None, other: str) -> bool:
    numbers = [[int(part) for part in (text or "").split(".")[:2] if part.isdecimal()] for text in (version, other)]
    return bool(numbers[0]) and numbers[0] < numbers[1]


_MEANING = {
    "CUDA_VISIBLE_DEVICES": "the GPUs that this process may see",
    "JAX_COMPILATION_CACHE_DIR": "where JAX keeps programs for the next run, but for those of several CPU devices",
    "JAX_DEBUG_NANS": "JAX checks every result for NaN, and is slow",
    "JAX_DISABLE_JIT": "JAX compiles nothing: programs cannot be laid out",
    "JAX_ENABLE_X64": "64-bit numbers instead of 32-bit",
    "JAX_NUM_CPU_DEVICES": "how many CPU devices JAX simulates, as outlay.simulate does",
    "JAX_PLATFORMS": "the platforms that JAX may use, the first is the default",
    "JAX_PLATFORM_NAME": "the old name of JAX_PLATFORMS, which still works",
    "NPROC": "threads of XLA's CPU client; outlay.simulate raises it so that devices cannot starve one another",
    "OUTLAY_TARGETS": "the file of your own hardware, for targets such as h100:1x8",
    "SLURM_JOB_ID": "this is a SLURM job",
    "SLURM_LOCALID": "which process of this node this is",
    "SLURM_NTASKS": "how many processes the job has",
    "SLURM_PROCID": "which process of the job this is",
    "XLA_FLAGS": "flags that XLA reads once, when JAX starts its backend",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "how GPU memory is allocated",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "the share of GPU memory that JAX takes at the start",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "whether JAX takes GPU memory at the start",
}
_FAMILIES = {"JAX_": "a JAX setting, read when jax is imported", "SLURM_": "set by SLURM"}


def meaning_of(variable: str) -> str:
    """Return the effect of a variable; empty for one that does not matter to JAX or Outlay.

    >>> meaning_of("JAX_LOG_COMPILES"), meaning_of("HOME")
    ('a JAX setting, read when jax is imported', '')
    """
    family = next((what for start, what in _FAMILIES.items() if variable.startswith(start)), "")
    return _MEANING.get(variable, family)
