"""What `outlay doctor` finds, as facts: versions, devices, environment, known problems."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outlay.cli.known_problems import known_problems
from outlay.cli.known_variables import meaning_of
from outlay.core.error_types import BackendError
from outlay.core.versions import versions

_NEEDED = ("outlay", "jax", "jaxlib", "numpy", "optax")
_OPTIONAL = ("flax", "grain", "matplotlib", "scikit-learn", "equinox", "dm-haiku", "orbax-checkpoint")


@dataclass(frozen=True)
class Doctor:
    """What is here.

    Attributes:
        versions: of Python and of the packages that Outlay needs; None for one that runs without being installed.
        optional: of packages that some parts need; None for those that are missing.
        platform: what JAX runs on, empty if it does not start.
        devices: the devices by id, in words.
        started_by: what had started JAX's backend before the examination.
        failure: why JAX does not start; empty if it does.
        environment: the variables that matter and are set: name, value, and what it does.
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
        """As JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        found = {name: version or "not installed" for name, version in {**self.versions, **self.optional}.items()}
        return "\n".join(
            [
                *_section("versions", found),
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
    """Look at everything; starts JAX's backend to list the devices."""
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
    from outlay.core.jax_compat import attached_devices, settle_on_cpu

    settle_on_cpu()  # the search for accelerators that are not here prints more than the doctor has to say
    try:
        return attached_devices(), ""
    except BackendError as error:
        return [], str(error).partition("\n")[0]


_WRONG_FLAG = re.compile(r"Unknown flags? in XLA_FLAGS: .*|Couldn't interpret value .*")


def _flags_failure() -> str:
    """Why XLA would end the process that starts it, which no process can catch; empty where it would not."""
    if not os.environ.get("XLA_FLAGS"):
        return ""
    try_out = [sys.executable, "-P", "-c", "import jax; jax.devices('cpu')"]  # -P: not a jax.py that lies here
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(try_out, env=environment, capture_output=True, text=True, errors="replace", check=False)
    wrong = _WRONG_FLAG.search(done.stderr) if done.returncode else None
    return f"XLA ends the process: {wrong[0]}" if wrong else ""


def _import_failure() -> str:
    """Why JAX cannot be imported; empty where it can."""
    try:
        import jax  # noqa: F401  its import is also what could start the backend
    except Exception as error:  # a variable that it cannot read, a broken installation
        return f"JAX cannot be imported: {type(error).__name__}: {error}"
    return ""


def _section(title: str, rows: Mapping[str, str]) -> list[str]:
    if not rows:
        return [f"{title}: nothing that matters is set", ""]
    width = max(map(len, rows))
    return [title, *(f"  {name:<{width}}  {value}" for name, value in rows.items()), ""]
